"""Connections are lent only where chunks of HTTP/1.1 can be written to them as they are."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.service.streams.lent_connection import connection_of


class Transport:
    def __init__(self, **info: object) -> None:
        self._info = info

    def get_extra_info(self, name: str) -> object:
        return self._info.get(name)


PLAIN = Transport(socket=object())


@pytest.mark.parametrize(
    ("transport", "version", "is_lent"),
    [
        (PLAIN, "1.1", True),
        (PLAIN, "1.0", False),
        (Transport(socket=object(), sslcontext=object()), "1.1", False),
        # as of a test's client
        (Transport(), "1.1", False),
    ],
)
def test_what_is_lent(transport: Any, version: str, *, is_lent: bool) -> None:
    scope = {"extensions": {"cohort.connection": transport}, "http_version": version}
    assert connection_of(scope) is (transport if is_lent else None)


@pytest.mark.parametrize("more", [{}, {"extensions": {}}])
def test_a_server_of_another_kind_lends_none(more: dict[str, Any]) -> None:
    assert connection_of({"http_version": "1.1", **more}) is None
