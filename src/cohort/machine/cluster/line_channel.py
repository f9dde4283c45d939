"""Messages between the dispatcher and a worker over a socket: one JSON object a line."""

from __future__ import annotations

import json
import socket
import threading

from cohort.machine.cluster.worker_pool import Message

__all__ = ["LineChannel"]

_CHUNK_BYTES = 1 << 16
# of messages that the other end has not taken; one that hangs is killed long before
_MOST_UNSENT_BYTES = 1 << 22


class LineChannel:
    """One end of a socket; sending is safe from any thread, receiving from one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._received = self._unsent = b""
        self._is_open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message; it is dropped where the other end is gone, which the reader of this end notices.

        Where the other end does not read and the socket has a time limit, the rest is sent before the next message or
        by :meth:`flush`: a line is never cut.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._sending:
            # the dispatcher must not grow without bound because of one worker that hangs
            if len(self._unsent) > _MOST_UNSENT_BYTES:
                return
            self._unsent += line
            self._push(flags=0)

    def flush(self) -> None:
        """Send the rest, as far as that is possible without waiting."""
        if self._unsent:
            with self._sending:
                self._push(flags=socket.MSG_DONTWAIT)

    def _push(self, *, flags: int) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent, flags) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""

    def receive(self) -> Message | None:
        """Wait for a message and return it; None when the other end is gone."""
        while True:
            line, found, rest = self._received.partition(b"\n")
            if found:
                self._received = rest
                message: Message = json.loads(line)
                return message
            if not self._read():
                return None

    def receive_available(self) -> list[Message]:
        """Return the whole messages that have arrived, without waiting."""
        while self._is_open and self._read(flags=socket.MSG_DONTWAIT):
            pass
        # half a line stays: its rest comes later, or never from a sender that was killed
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    @property
    def is_open(self) -> bool:
        return self._is_open

    def close(self) -> None:
        self._is_open = False
        self._socket.close()

    def _read(self, *, flags: int = 0) -> bool:
        """Read what has arrived; return whether anything had."""
        try:
            chunk = self._socket.recv(_CHUNK_BYTES, flags)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._is_open = False
            return False
        self._received += chunk
        return True
