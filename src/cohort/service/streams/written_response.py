"""An answer whose head and end are written here, and everything between them by another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cohort.service.streams.stream_writer import StreamWriter, WrittenStream

__all__ = ["WrittenResponse"]

_HEAD_SECONDS = 0.001


class WrittenResponse(StreamingResponse):
    """A stream of events. A client that leaves ends it."""

    def __init__(
        self,
        stream: WrittenStream,
        *,
        writer: StreamWriter,
        connection: asyncio.Transport,
        headers: dict[str, str],
        on_end: Callable[[], None],
    ) -> None:
        """Answer with a stream that has begun.

        Args:
            on_end: Called once nothing more is written, also for a client that has left.
        """
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._stream, self._writer, self._connection, self._on_end = stream, writer, connection, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del scope
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._lend()
            either: set[asyncio.Future[Any]] = {leaving, self._stream.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._stream.ended.done() and self._stream.ended.result():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not leaving.done():
                # what was written may end in the middle of a chunk: the client must not take it for an answer
                self._connection.abort()
                await leaving
        finally:
            leaving.cancel()
            self._writer.forget(self._stream)
            self._on_end()

    async def _lend(self) -> None:
        """Let the other process write, once nothing of the head is left to be written here."""
        while self._connection.get_write_buffer_size() and not self._connection.is_closing():
            await asyncio.sleep(_HEAD_SECONDS)
        try:
            self._writer.attach(self._stream, self._connection.get_extra_info("socket").fileno())
        except OSError:
            # the client has left, or this process may open no more files: the other process has it begun
            self._writer.forget(self._stream)
            self._stream.end(is_whole=False)


async def _left(receive: Receive) -> None:
    """Return once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
