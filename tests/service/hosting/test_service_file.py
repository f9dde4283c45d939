"""``service.yaml``: defaults for everything, places relative to it, and unknown keys refused with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.service.hosting.service_file import default_service, load_service_file


def written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text)
    return path


def test_without_a_file_everything_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = default_service()
    assert file.folder == str(tmp_path / "cohort-service")
    assert (file.host, file.port, file.database, file.tls) == ("127.0.0.1", 8000, None, None)
    assert file.limits.max_file_mib == 200
    assert file.retention.model_dump() == {"events_days": None, "jobs_days": None, "runs_days": None}
    assert file.node


def test_places_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    text = "folder: data\nbases:\n  - {name: a, model: model}\n  - {name: b, model: org/model}\n"
    file = load_service_file(written(tmp_path, text))
    assert file.folder == str(tmp_path / "data")
    assert [base.model for base in file.bases] == [str(tmp_path / "model"), "org/model"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 8000\n", ["service.yaml:1: prot", "Did you mean port"]),
        ("port: 99999\n", ["service.yaml:1: port", "0 to 65535"]),
        ("limits:\n  max_file_mb: 1\n", ["service.yaml:2: limits.max_file_mb", "max_file_mib"]),
        ("bases:\n  - {name: a}\n", ["model"]),
        ("bases: [{name: a, model: m}, {name: a, model: n}]\n", ["a second base named 'a'"]),
        ("database: postgresql://h/d\n", ["blobs", "s3://"]),
        ("workers: {gpus: 1, cpu: 1}\n", ["one of the two"]),
        ("- a\n", ["keys and values"]),
        ("gpu_hour: 2.49\n", ["service.yaml:1: gpu_hour", "2.49 USD"]),
        ("dashboard: control\n", ["service.yaml:1: dashboard", "read | change | none"]),
        ("retention: {events_days: 0}\n", ["service.yaml:1: retention.events_days", "days"]),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        load_service_file(written(tmp_path, text))
    for word in words:
        assert word in str(refused.value)


def test_the_database_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_DATABASE", "postgresql://cohort:secret@db/cohort")
    file = load_service_file(written(tmp_path, "blobs: blobs\n"))
    assert file.database == "postgresql://cohort:secret@db/cohort"
