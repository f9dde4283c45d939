"""Pages for administrators: who may see them, what they say, and what they change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cohort.store.enums import KeyScope
from cohort.store.tenants.audit import list_audit
from tests.service.admin.tenant_store import TwoTenants, pages_of, two_tenants

API = "/dashboard/api"


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[TwoTenants]:
    found = two_tenants(tmp_path / "service")
    yield found
    found.store.close()


def client_of(tenants: TwoTenants, *, can_change: bool = True, key: str | None = None) -> TestClient:
    """Return a browser that has signed in; with the administrator's key by default."""
    app = pages_of(tenants.store, can_change=can_change)
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    opened = client.post(f"{API}/session", json={"key": tenants.admin if key is None else key})
    if opened.status_code == 200:
        client.headers["x-csrf-token"] = opened.json()["csrf"]
    return client


def test_keys_with_the_scope_admin_open_the_pages_and_others_do_not(tenants: TwoTenants) -> None:
    client = client_of(tenants, key=tenants.member)
    session = client.get(f"{API}/session").json()
    assert (session["pages"], session["can_change"]) == (["runs", "compare"], False)
    weight = {"kind": "weight", "project": tenants.projects["default"], "weight": 3}
    for method, call, body in (
        ("GET", "service", None),
        ("GET", f"service/project?project={tenants.projects['default']}", None),
        ("POST", "service/preview", weight),
        ("POST", "service/change", weight),
    ):
        refused = client.request(method, f"{API}/{call}", json=body)
        assert (refused.status_code, refused.json()) == (403, {"error": "this key lacks the scope admin"}), call
    assert not client.post(f"{API}/session", json={"leave": True}).json()["is_open"]
    assert client.get(f"{API}/service").status_code == 401
    for wrong in (b'""', b'"sk-cohort-x"', '"ключ"'.encode(), b'"\\ud800"', b"7"):
        sent: Any = {"content": b'{"key": %s}' % wrong, "headers": {"content-type": "application/json"}}
        assert client.post(f"{API}/session", **sent).status_code == 401
    bearer = {"authorization": f"Bearer {tenants.member}"}
    assert client.get(f"{API}/service", headers=bearer).status_code == 403
    assert client.get(f"{API}/service", headers={"authorization": f"Bearer {tenants.admin}"}).status_code == 200
    # what a browser loads before it knows a key is the same for everyone
    assert client.get("/dashboard/static/pages/service.js").status_code == 200
    session = client.get(f"{API}/session").json()
    assert (session["is_open"], session["pages"], session["csrf"]) == (False, ["runs", "compare"], "")
    assert client_of(tenants).get(f"{API}/session").json()["pages"] == ["service", "runs", "compare"]


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites_and_ends_with_the_key(tenants: TwoTenants) -> None:
    client = client_of(tenants)
    answer = client.post(f"{API}/session", json={"key": tenants.admin})
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/dashboard/"))
    assert tenants.admin not in cookie
    assert client.get(f"{API}/service").status_code == 200
    tenants.store.keys.revoke(tenants.keys["admin"], actor="test")
    assert client.get(f"{API}/service").status_code == 401


def test_a_change_needs_the_token_of_the_page_and_permission(tenants: TwoTenants) -> None:
    body = {"kind": "weight", "project": tenants.projects["default"], "weight": 3}
    client = client_of(tenants)
    token = client.headers.pop("x-csrf-token")
    assert client.post(f"{API}/service/change", json=body).status_code == 403
    other = {"x-csrf-token": token, "origin": "http://evil.example"}
    assert client.post(f"{API}/service/change", json=body, headers=other).status_code == 403
    reader = client_of(tenants, can_change=False)
    for call in ("preview", "change"):
        refused = reader.post(f"{API}/service/{call}", json=body)
        assert refused.status_code == 403
        assert "dashboard: change" in refused.json()["error"]
    assert tenants.store.tenants.project(tenants.projects["default"]).weight == 1.0


def test_tenants_are_shown_with_what_they_use(tenants: TwoTenants) -> None:
    found = client_of(tenants).get(f"{API}/service").json()
    first, second = found["projects"]
    assert (first["organisation"], first["name"], first["weight"], first["max_open_jobs"]) == (
        "acme",
        "research",
        2.0,
        4,
    )
    assert (first["tokens_today"], first["used"]["gpu_seconds"], first["open_jobs"]) == (250_000, 5400.0, 0)
    assert (second["tokens_today"], second["max_tokens_per_day"]) == (1000, None)
    (day,) = found["by_day"]
    assert (day["trained_tokens"], day["prompt_tokens"], day["requests"]) == (250_000.0, 1000.0, 3.0)
    one = client_of(tenants).get(f"{API}/service/project", params={"project": tenants.projects["research"]})
    (key,) = one.json()["keys"]
    assert (key["id"], key["state"]) == (tenants.keys["admin"], "valid")
    # neither the secret nor its digest leaves the server
    assert tenants.admin not in one.text
    assert "digest" not in one.text
    assert {entry["action"] for entry in one.json()["audit"]} == {"project.add", "key.create"}
    unknown = client_of(tenants).get(f"{API}/service/project", params={"project": "proj_none"})
    assert unknown.status_code == 404


def changed(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    """Return what a change answers, after its preview, which does nothing."""
    plan = client.post(f"{API}/service/preview", json=body)
    assert plan.status_code == 200, plan.text
    assert all(plan.json()[part] for part in ("does", "undo", "when"))
    answer = client.post(f"{API}/service/change", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_each_change_does_what_it_says_and_names_the_key_in_the_audit_log(tenants: TwoTenants) -> None:
    client, store = client_of(tenants), tenants.store
    added = changed(client, {"kind": "add", "name": "acme/tests", "weight": 0.5})
    project = store.tenants.project("acme/tests")
    assert (added["project"], project.weight) == (project.id, 0.5)
    changed(client, {"kind": "weight", "project": project.id, "weight": 4})
    quotas = {"max_open_jobs": 2, "max_stored_bytes": None}
    changed(client, {"kind": "quotas", "project": project.id, "quotas": quotas})
    project = store.tenants.project(project.id)
    assert (project.weight, project.max_open_jobs, project.max_stored_bytes) == (4.0, 2, None)
    made = changed(client, {"kind": "create-key", "project": project.id, "scopes": ["tasks"], "days": 30, "name": "ci"})
    caller = store.keys.find(made["secret"])
    assert caller is not None
    assert caller.key.scopes == {KeyScope.TASKS}
    assert caller.key.expires_at == pytest.approx(caller.key.created_at + 30 * 86400)
    changed(client, {"kind": "revoke-key", "project": project.id, "key": caller.key.id})
    assert store.keys.find(made["secret"]) is None
    entries = list_audit(store.database, project_id=project.id).items
    assert {entry.actor for entry in entries} == {f"key {tenants.keys['admin']}, from the pages"}
    assert {entry.action for entry in entries} == {
        "project.add", "project.weight", "project.quota", "key.create", "key.revoke",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"kind": "remove"}, 400, "kind"),
        ({"kind": "add", "name": "acme/research", "weight": 1}, 409, "already"),
        ({"kind": "add", "name": "a/../b", "weight": 1}, 400, "name"),
        ({"kind": "weight", "weight": 0}, 400, "a number above 0"),
        ({"kind": "weight", "weight": True}, 400, "a number above 0"),
        ({"kind": "weight", "weight": "2"}, 400, "a number above 0"),
        ({"kind": "weight", "project": "proj_none", "weight": 1}, 404, "proj_none"),
        ({"kind": "quotas", "quotas": {"max_open_jobs": -1}}, 400, "max_open_jobs"),
        ({"kind": "quotas", "quotas": {"max_open_jobs": "5 apples"}}, 400, "max_open_jobs"),
        ({"kind": "quotas", "quotas": {"weight": 1}}, 400, "quotas"),
        ({"kind": "quotas", "quotas": {"max_open_jobs": 4}}, 400, "at least one other number"),
        ({"kind": "create-key", "scopes": []}, 400, "at least one"),
        ({"kind": "create-key", "scopes": ["tasks", "root"]}, 400, "'root'"),
        # a page must not make the key that opens the pages
        ({"kind": "create-key", "scopes": ["admin"]}, 400, "cohort keys create"),
        ({"kind": "create-key", "scopes": ["tasks"], "days": -1}, 400, "days"),
        ({"kind": "revoke-key", "key": "key_none"}, 400, "not revoked yet"),
    ],
)
def test_a_wrong_change_is_named_and_nothing_is_done(
    tenants: TwoTenants, body: dict[str, Any], status: int, words: str
) -> None:
    client = client_of(tenants)
    before = len(list_audit(tenants.store.database).items)
    sent = {"project": tenants.projects["research"], **body}
    answer = client.post(f"{API}/service/change", json=sent)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]
    assert len(list_audit(tenants.store.database).items) == before


def test_a_key_of_another_project_is_not_revoked(tenants: TwoTenants) -> None:
    body = {"kind": "revoke-key", "project": tenants.projects["research"], "key": tenants.keys["member"]}
    assert client_of(tenants).post(f"{API}/service/change", json=body).status_code == 400
    assert tenants.store.keys.find(tenants.member) is not None
