"""Connections of uvicorn's that an answer may have another process write to."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["LendingProtocol", "connection_of"]

_EXTENSION = "cohort.connection"


class LendingProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's own, which tells a request of its connection."""

    app: ASGIApp

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        app: ASGIApp = self.app

        async def with_connection(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                scope["extensions"] = {**scope.get("extensions", {}), _EXTENSION: transport}
            await app(scope, receive, send)

        self.app = with_connection


def connection_of(scope: MutableMapping[str, Any]) -> asyncio.Transport | None:
    """Return the connection of a request whose answer may be written by its file descriptor.

    None where bytes are encrypted, or not sent as the chunks of HTTP/1.1, or where the server lends none.
    """
    transport: asyncio.Transport | None = scope.get("extensions", {}).get(_EXTENSION)
    if transport is None or scope["http_version"] != "1.1" or transport.get_extra_info("sslcontext") is not None:
        return None
    return transport if transport.get_extra_info("socket") is not None else None
