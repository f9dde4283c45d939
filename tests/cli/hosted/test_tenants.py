"""``cohort tenants`` and ``cohort keys`` on a service's folder, from the first project to its removal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from cohort.store.enums import UsageKind
from cohort.store.store import open_store
from tests.cli.command import cohort


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    return "--folder", str(tmp_path / "service")


def test_a_project_gets_a_share_quotas_and_keys(at: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = cohort(capsys, "tenants", "add", "acme", "--weight", "2", *at)
    assert (code, err) == (0, "")
    assert out.startswith("added acme/default (proj_")
    assert out.endswith("next: cohort keys create acme/default\n")
    cohort(capsys, "tenants", "add", "acme/research", *at)
    cohort(capsys, "tenants", "weight", "acme/research", "3", *at)
    quotas = ("--max-stored-bytes", "20GB", "--max-open-jobs", "5")
    assert cohort(capsys, "tenants", "quota", "acme/research", *quotas, *at)[0] == 0
    cohort(capsys, "tenants", "quota", "acme/research", "--max-open-jobs", "none", *at)
    found = json.loads(cohort(capsys, "tenants", "list", "--json", *at)[1])["projects"]
    assert [(each["organisation"], each["name"], each["weight"]) for each in found] == [
        ("acme", "default", 2),
        ("acme", "research", 3),
    ]
    assert (found[1]["max_stored_bytes"], found[1]["max_open_jobs"]) == (20 * 10**9, None)

    code, key, err = cohort(capsys, "keys", "create", "acme/default", "--name", "laptop", "--expires", "30d", *at)
    assert code == 0
    assert "shown this once" in err
    store = open_store(at[1])
    caller = store.keys.find(key.strip())
    assert caller is not None
    assert (caller.project.name, caller.key.name) == ("default", "laptop")
    assert caller.key.expires_at == pytest.approx(caller.key.created_at + 30 * 86400)
    _, listed, _ = cohort(capsys, "keys", "list", "acme", *at)
    assert key.strip() not in listed
    assert caller.key.prefix in listed
    assert "acme/default" in listed
    assert cohort(capsys, "keys", "revoke", caller.key.id, *at)[1] == f"revoked {caller.key.id}\n"
    assert store.keys.find(key.strip()) is None
    assert "revoked" in cohort(capsys, "keys", "list", *at)[1]
    store.close()

    assert cohort(capsys, "tenants", "remove", "acme/research", "--yes", *at)[0] == 0
    assert "research" not in cohort(capsys, "tenants", "list", *at)[1]
    _, audit, _ = cohort(capsys, "tenants", "audit", "--json", *at)
    entries = json.loads(audit)["entries"]
    assert [entry["action"] for entry in entries][:3] == ["project.remove", "key.revoke", "key.create"]
    assert all(entry["actor"].startswith("cli:") for entry in entries)
    assert key.strip() not in audit
    assert "project.weight" in cohort(capsys, "tenants", "audit", *at)[1]


def test_usage_is_exported_as_csv_and_json(at: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    cohort(capsys, "tenants", "add", "acme", *at)
    store = open_store(at[1])
    project = store.tenants.project("acme/default")
    store.project(project.id).usage.add({UsageKind.TRAINED_TOKENS: 12})
    store.close()
    rows = list(csv.DictReader(io.StringIO(cohort(capsys, "tenants", "usage", *at)[1])))
    assert [(row["project_id"], row["kind"], row["amount"]) for row in rows] == [(project.id, "trained_tokens", "12.0")]
    found = json.loads(cohort(capsys, "tenants", "usage", "--format", "json", "--from", rows[0]["day"], *at)[1])
    assert found["usage"][0]["amount"] == 12
    assert cohort(capsys, "tenants", "usage", "--to", "1999-12-31", *at)[1].count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("keys", "create", "acme/default", "--scope", "root"),
            "scopes found 'root' allowed inference, fine_tuning",
        ),
        (("keys", "create", "acme/default", "--expires", "soon"), "--expires found 'soon'"),
        (("keys", "create", "acme/none"), "no project with id 'acme/none'"),
        (("keys", "revoke", "key_none"), "no key with id 'key_none'"),
        (("tenants", "quota", "acme/default", "--max-open-jobs", "many"), "--max-open-jobs found 'many'"),
        (("tenants", "weight", "acme/default", "0"), "weight found 0.0 allowed a number above 0"),
        (("tenants", "usage", "--from", "yesterday"), "--from found 'yesterday'"),
        (("tenants", "add", "acme"), "a project 'default' already"),
        (("tenants", "list", "--database", "mysql://a@b/c"), "--database found 'mysql'"),
    ],
)
def test_mistakes_are_explained(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    cohort(capsys, "tenants", "add", "acme", *at)
    code, out, err = cohort(capsys, *words, *at)
    assert code in (1, 2)
    assert said in " ".join(err.split())
    assert out == ""


def test_a_folder_without_a_service_is_not_made_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = cohort(capsys, "tenants", "list", "--folder", str(tmp_path / "none"))
    assert code == 2
    assert "no service (service.db is not there)" in err
    assert not (tmp_path / "none").exists()


def test_removing_asks_first(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort(capsys, "tenants", "add", "acme", *at)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, _, err = cohort(capsys, "tenants", "remove", "acme", *at)
    assert code == 1
    assert "nothing was removed" in err
    assert "acme/default" in cohort(capsys, "tenants", "list", *at)[1]
