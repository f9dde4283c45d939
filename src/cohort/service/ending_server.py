"""uvicorn's server, which says when it is about to end: streams that never end by themselves can then do so."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

__all__ = ["KEEP_ALIVE_SECONDS", "EndingServer"]

KEEP_ALIVE_SECONDS = 75
"""After so long without a request a connection is closed. Clients close theirs sooner (httpx and with it the ``openai``
package after 5 s): with the same time a request may be sent on a connection that is just being closed."""


class EndingServer(uvicorn.Server):
    """Calls ``on_end`` in the event loop before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, *, on_end: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._on_end = on_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_end is not None:
            self._on_end()
        await super().shutdown(sockets=sockets)
