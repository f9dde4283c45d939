"""Another rank as rank 0 sees it, by whichever way its process was started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from cohort.core.errors import RankLostError
from cohort.ranks.commands import Command, Reply
from cohort.ranks.transport import Channel

__all__ = ["RankLink"]


class RankLink(ABC):
    """A rank that rank 0 commands. Commands are answered in order; several ranks may work at the same time.

    Attributes:
        opens_gpu_memory: Whether it can open the memory of this process's GPU, and the other way round.
    """

    def __init__(self, rank: int, channel: Channel, *, opens_gpu_memory: bool = True) -> None:
        """Take a rank by its connection."""
        self.rank, self.opens_gpu_memory = rank, opens_gpu_memory
        self._channel = channel

    @property
    @abstractmethod
    def process_id(self) -> int: ...

    def fileno(self) -> int:
        """For those who wait for an answer, or for the end of the process."""
        return self._channel.fileno()

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

    def do(self, command: Command) -> Any:
        """Send a command, wait, and return the whole answer."""
        self.ask(command)
        return self.answer()

    @abstractmethod
    def close(self) -> None:
        """Let the rank end what it serves with."""

    @abstractmethod
    def kill(self) -> None:
        """Let go of the rank at once; its process ends, whatever it is doing or after the command it is at."""

    @abstractmethod
    def _lost(self) -> RankLostError:
        """Return the error that says which rank is gone, and what to do."""
