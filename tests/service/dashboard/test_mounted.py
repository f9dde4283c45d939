"""The pages work below a path of another application, with the keys of its server."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from cohort.service.dashboard.mounted import mounted_dashboard


def test_pages_are_served_next_to_models(folder: Path) -> None:
    pages = mounted_dashboard(folder, api_keys=("key",), host="127.0.0.1", port=8000)
    client = TestClient(Starlette(routes=[Mount("/dashboard", pages)]), base_url="http://127.0.0.1:8000")
    # relative addresses of the page need the slash
    moved = client.get("/dashboard", follow_redirects=False)
    assert moved.headers["location"].endswith("/dashboard/")
    assert "app.js" in client.get("/dashboard/").text
    assert client.get("/dashboard/static/app.js").status_code == 200
    assert client.get("/dashboard/api/runs").status_code == 401
    opened = client.post("/dashboard/api/session", json={"key": "key"})
    assert "Path=/dashboard/" in opened.headers["set-cookie"]
    assert {row["name"] for row in client.get("/dashboard/api/runs").json()["runs"]} == {"small", "night/sweep"}
