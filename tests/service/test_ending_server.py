"""What the servers of clients have in common."""

from __future__ import annotations

import httpx

from cohort.service.ending_server import KEEP_ALIVE_SECONDS


def test_clients_close_idle_connections_before_the_server_does() -> None:
    expiry = httpx.Limits().keepalive_expiry
    assert expiry is not None
    assert 2 * expiry < KEEP_ALIVE_SECONDS
