"""Starts the process of a rank and talks to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any, Protocol

from cohort.core.errors import RankLostError
from cohort.parallel.commands import Command, Reply
from cohort.parallel.transport import Channel

__all__ = ["GO_ON", "RankProcess", "Setup"]

# a rank that was told to end, or whose connection is closed, ends after the command it is at
_PATIENCE_SECONDS = 5.0
GO_ON = "everything up to the last checkpoint is saved: go on with `cohort resume`, also with fewer GPUs"


class Setup(Protocol):
    """What a rank is told first."""

    @property
    def rank(self) -> int: ...


class RankProcess:
    """One rank other than rank 0. Commands are answered in order; several ranks may work at the same time.

    Attributes:
        opens_gpu_memory: Whether it can open the memory of this process's GPU, and the other way round.
    """

    opens_gpu_memory = True

    def __init__(self, setup: Setup, *, program: str = "cohort.parallel.rank_server", advice: str = GO_ON) -> None:
        """Start the process; it loads the model while the caller goes on. :meth:`answer` waits until it is ready.

        Args:
            setup: What the program begins with.
            program: The module that is run; its argument is the descriptor of the connection.
            advice: What the user does once the process is lost.
        """
        self.rank, self._advice = setup.rank, advice
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # multicast hangs on some hosts, and nothing here needs it
                env={**os.environ, "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
                start_new_session=True,
            )
        self._channel = Channel(Connection(ours.detach()))
        self.ask(setup)

    @property
    def process_id(self) -> int:
        return self._process.pid

    def ask(self, command: object) -> None:
        """Send a command; its answer is due.

        Raises:
            RankLostError: the process has ended.
        """
        try:
            self._channel.send(command)
        except OSError as error:
            raise self._lost() from error

    def answer(self) -> Reply:
        """Wait for the answer to the oldest command without one.

        Raises:
            RankLostError: the process has ended.
        """
        try:
            reply: Reply = self._channel.receive()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return reply

    def fileno(self) -> int:
        """For those who wait for an answer, or for the end of the process."""
        return self._channel.fileno()

    def do(self, command: Command) -> Any:
        """Send a command, wait, and return the whole answer."""
        self.ask(command)
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_SECONDS)
            return
        self.kill()

    def kill(self) -> None:
        """End the process at once, whatever it is doing."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _lost(self) -> RankLostError:
        who = f"rank {self.rank} (process {self.process_id})"
        try:
            status = self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return RankLostError(f"{who} no longer answers; {self._advice}")
        how = f"with exit code {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                how = f"by {signal.Signals(-status).name}"
        return RankLostError(f"{who} ended {how}; {self._advice}")
