"""Paths of a service that belong to none of its APIs."""

from __future__ import annotations

import httpx

from tests.service.hosting.running_service import RunningService


def test_the_pages_are_found_without_the_slash_at_their_end(service: RunningService) -> None:
    answer = httpx.get(f"{service.url}/dashboard")
    # relative, so that it holds behind a proxy with a path of its own
    assert (answer.status_code, answer.headers["location"]) == (307, "dashboard/")
    followed = httpx.get(f"{service.url}/dashboard", follow_redirects=True)
    assert followed.status_code == 200
    assert "<html" in followed.text
