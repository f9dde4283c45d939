"""Hosts, keys, cookies, tokens and sizes: what reaches a route, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cohort.service.dashboard.plain_json import dumped
from cohort.service.dashboard.settings import DashboardSettings
from tests.service.dashboard.conftest import client_of


@pytest.fixture
def locked(folder: Path) -> TestClient:
    return client_of(DashboardSettings(root=folder, can_control=True, api_keys=("right", "other"), host="0.0.0.0"))


def test_without_a_key_a_page_sees_nothing_but_the_way_in(locked: TestClient) -> None:
    assert locked.get("/").status_code == 200
    assert locked.get("/static/app.js").status_code == 200
    session = locked.get("/api/session").json()
    assert not session["is_open"]
    assert "root" not in session
    assert "can_control" not in session
    for path in ("/api/runs", "/api/run", "/api/run/events", "/api/queues", "/api/machine"):
        assert locked.get(path).status_code == 401, path
    assert locked.post("/api/run/ask", json={}, headers={"x-csrf-token": session["csrf"]}).status_code == 401


def test_a_key_opens_and_leaving_closes(locked: TestClient) -> None:
    before = locked.get("/api/session").json()
    assert locked.post("/api/session", json={"key": "wrong"}).status_code == 401
    opened = locked.post("/api/session", json={"key": "other"})
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert opened.json()["csrf"] != before["csrf"], "a session from before the key is another one"
    assert locked.get("/api/runs").status_code == 200
    assert not locked.post("/api/session", json={"leave": True}).json()["is_open"]
    assert locked.get("/api/runs").status_code == 401


def test_a_program_sends_its_key_as_to_the_server_of_models(locked: TestClient) -> None:
    right, wrong = {"authorization": "Bearer right"}, {"authorization": "Bearer wrong"}
    assert locked.get("/api/runs", headers=right).status_code == 200
    assert locked.get("/api/runs", headers=wrong).status_code == 401
    body = {"kind": "stop", "trial": 3}
    assert locked.post("/api/run/ask", json=body, headers=wrong).status_code == 401
    # it reached the run, which has no task
    assert locked.post("/api/run/ask", params={"run": "small"}, json=body, headers=right).status_code == 400


def test_half_a_character_is_no_key_and_no_error(locked: TestClient) -> None:
    headers = {"content-type": "application/json"}
    assert locked.post("/api/session", content=b'{"key": "\\ud800"}', headers=headers).status_code == 401
    assert json.loads(dumped({"error": "\ud800"})) == {"error": "\ud800"}


def test_a_change_needs_the_token_of_its_own_session(folder: Path) -> None:
    settings = DashboardSettings(root=folder, can_control=True)
    client, other = client_of(settings), client_of(settings)
    body = {"kind": "stop", "trial": 3}
    assert client.post("/api/run/preview", json=body).status_code == 403, "no session"
    token = client.get("/api/session").json()["csrf"]
    assert client.post("/api/run/preview", json=body).status_code == 403, "no token"
    foreign = other.get("/api/session").json()["csrf"]
    assert client.post("/api/run/preview", json=body, headers={"x-csrf-token": foreign}).status_code == 403
    own = client.post("/api/run/preview", params={"run": "small"}, json=body, headers={"x-csrf-token": token})
    assert own.status_code == 400, "it reached the run"


def test_a_page_of_another_site_gets_nothing(client: TestClient) -> None:
    token = client.get("/api/session").json()["csrf"]
    headers = {"x-csrf-token": token, "origin": "https://evil.example"}
    assert client.post("/api/run/ask", json={}, headers=headers).status_code == 403
    # a form of another site needs no permission to be sent, and cannot send JSON
    form = client.post("/api/run/ask", data={"kind": "stop"}, headers={"x-csrf-token": token})
    assert form.status_code == 415
    # a name of another site that was made to point here
    for host in ("evil.example", "127.evil.example", "127.0.0.1.evil.example:8090", "0.0.0.0"):
        assert client.get("/api/runs", headers={"host": host}).status_code == 421, host
    for host in ("localhost:8090", "127.0.0.1", "[::1]:8090"):
        assert client.get("/api/runs", headers={"host": host}).status_code == 200


def test_bodies_have_an_end_and_methods_are_few(client: TestClient) -> None:
    assert (
        client.post("/api/session", content=b"x" * (2 << 20), headers={"content-type": "application/json"}).status_code
        == 413
    )
    # a piece at a time, without a length
    pieces = (b"x" * (1 << 20) for _ in range(2))
    headers = {"content-type": "application/json"}
    assert client.post("/api/session", content=pieces, headers=headers).status_code == 413
    assert client.delete("/api/runs").status_code == 405
    assert client.get("/api/runs", headers={"cookie": 'cohort_session=;;"=broken'}).status_code == 200
