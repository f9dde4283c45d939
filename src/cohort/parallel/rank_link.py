"""Another rank as rank 0 sees it, by whichever way its process was started."""

from __future__ import annotations

from typing import Any, Protocol

from cohort.parallel.commands import Command, Reply

__all__ = ["RankLink"]


class RankLink(Protocol):
    """A rank that rank 0 commands. Commands are answered in order; several ranks may work at the same time.

    Attributes:
        opens_gpu_memory: Whether it can open the memory of this process's GPU, and the other way round.
    """

    @property
    def rank(self) -> int: ...
    @property
    def process_id(self) -> int: ...
    @property
    def opens_gpu_memory(self) -> bool: ...

    def ask(self, command: Command) -> None:
        """Send a command; its answer is due. Raises RankLostError where the process has ended."""
        ...

    def answer(self) -> Reply:
        """Wait for the answer to the oldest command without one. Raises RankLostError where the process has ended."""
        ...

    def do(self, command: Command) -> Any:
        """Send a command, wait, and return the whole answer."""
        ...

    def close(self) -> None:
        """Let the rank end what it serves with."""
        ...
