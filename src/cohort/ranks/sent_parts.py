"""Parts of divided layers that a rank sends to peers which cannot open its memory.

Some machines keep processes apart: containers without shared namespaces, drivers without CUDA IPC. There a rank asks
its peer for a part over a connection of this machine, and the peer answers from a thread of its own. No rank waits for
a peer's passes, as it would in a collective (ALTO 6.2 gathers all parts at the same time on all ranks); but every part
goes through the host's memory twice, at a few GB/s in place of a link's hundreds.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge

import torch
from torch import Tensor

from cohort.core.errors import RankLostError

__all__ = ["PartAddress", "PartReceiver", "PartSender"]


@dataclass(frozen=True, kw_only=True)
class PartAddress:
    """Where a rank sends its parts from; who has the key may ask."""

    port: int
    key: bytes


class PartSender:
    """Answers peers from threads of its own, until the process ends."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        """Send one of ``parts``, uint8, for each streamed layer."""
        self._parts = parts
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = PartAddress(port=int(self._server.getsockname()[1]), key=secrets.token_bytes(32))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further peer; those there are answered as long as they live."""
        # closing alone would leave the thread waiting, with the memory of the parts
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._send, args=(Connection(accepted.detach()),), daemon=True).start()

    def _send(self, connection: Connection) -> None:
        try:
            deliver_challenge(connection, self.address.key)
            answer_challenge(connection, self.address.key)
            while True:
                place = int.from_bytes(connection.recv_bytes(), "little")
                connection.send_bytes(self._parts[place].cpu().numpy().data)
        except (EOFError, OSError, AuthenticationError):
            connection.close()


class PartReceiver:
    """Asks one peer for parts; answers come in the order of the questions."""

    def __init__(self, address: PartAddress, *, rank: int) -> None:
        """Connect to the sender of ``rank``.

        Raises:
            OSError: it cannot be reached.
        """
        self._rank = rank
        self._connection = Client(("127.0.0.1", address.port), authkey=address.key)
        self._asked: deque[_Asked] = deque()

    def close(self) -> None:
        self._connection.close()

    def fetch(self, place: int, into: Tensor) -> _Asked:
        """Ask for the part of a layer; it is in ``into``, uint8 [at most the bytes of a part], once it was waited for.

        Raises:
            RankLostError: the peer is gone.
        """
        asked = _Asked(self, into)
        try:
            self._connection.send_bytes(place.to_bytes(8, "little"))
        except OSError as error:
            raise self._lost() from error
        self._asked.append(asked)
        return asked

    def receive(self) -> None:
        """Put the next answer where it was asked for."""
        try:
            content = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        asked = self._asked.popleft()
        # on the stream of the caller: what was launched before still reads what the buffer held
        part = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        asked.into.copy_(part[: asked.into.nbytes])
        asked.is_there = True

    def _lost(self) -> RankLostError:
        return RankLostError(
            f"rank {self._rank} no longer sends its parts of the base model; everything up to the last checkpoint is "
            "saved: go on with `cohort resume`, also with fewer GPUs"
        )


class _Asked:
    """A part that was asked for."""

    def __init__(self, receiver: PartReceiver, into: Tensor) -> None:
        self._receiver, self.into, self.is_there = receiver, into, False

    def wait(self) -> None:
        while not self.is_there:
            self._receiver.receive()
