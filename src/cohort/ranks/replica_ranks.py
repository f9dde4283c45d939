"""The ranks besides rank 0, asked one by one or all at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cohort.core.errors import SampleTooLargeError
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.ranks.commands import Command, Reply
from cohort.ranks.rank_link import RankLink
from cohort.ranks.work_meter import WorkMeter
from cohort.training.device_memory import is_out_of_memory

__all__ = ["ReplicaRanks"]


class ReplicaRanks:
    """Ranks that work by themselves. What their answers say besides values is kept here.

    Attributes:
        token_budgets: Most tokens of a micro-batch of each rank that has answered, by rank.
    """

    def __init__(self, links: Sequence[RankLink], *, make_room: Callable[[], bool]) -> None:
        """Take ranks that were started.

        Args:
            make_room: Frees what only saves time on all GPUs; asked where a rank has nothing of its own left to free.
        """
        self._links, self._make_room = {link.rank: link for link in links}, make_room
        self.token_budgets: dict[int, dict[PassKind, int]] = {}
        self._num_recomputed: dict[int, int] = {}
        self._shortages: list[MemoryShortage] = []
        self._meter = WorkMeter(1 + len(links))

    def __len__(self) -> int:
        return len(self._links)

    @property
    def work(self) -> tuple[RankWork, ...]:
        """What all ranks have done so far, rank 0 included."""
        return self._meter.totals

    @property
    def num_recomputed(self) -> int:
        return sum(self._num_recomputed.values())

    def opens_gpu_memory(self, rank: int) -> bool:
        """Return whether a rank can open the memory of this process's GPU, and the other way round."""
        return self._links[rank].opens_gpu_memory

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        """Return the ranks' memory shortages since the last call."""
        found, self._shortages = self._shortages, []
        return tuple(found)

    def wait_until_ready(self) -> None:
        """Take the first answer of each rank.

        Raises:
            RankLostError: one of them ended.
            Exception: one of them could not build its executor.
        """
        for rank, link in self._links.items():
            self._value(rank, link.answer())

    def ask(self, rank: int, command: Command) -> Any:
        """Return what a rank's command gives, or raise what it raised."""
        return self._value(rank, self._links[rank].do(command))

    def ask_all(self, command: Command) -> list[Any]:
        return [self.ask(rank, command) for rank in self._links]

    def together(
        self, kind: PassKind, commands: Mapping[int, Command], *, local: Callable[[], Any] | None
    ) -> tuple[dict[int, Any], Exception | None]:
        """Carry out commands on several ranks at the same time; return what they returned, and the first error.

        A rank that is out of memory with nothing of its own left to free is asked again after states of parked trials
        have left the GPUs.

        Args:
            local: Rank 0's part, which this process carries out meanwhile; None where it has none.
        """
        for rank, command in commands.items():
            self._links[rank].ask(command)
        found: dict[int, Any] = {}
        seconds: dict[int, float] = {}
        first: Exception | None = None
        if local is not None:
            began = time.monotonic()
            try:
                found[0] = local()
            except Exception as error:
                first = error
            seconds[0] = time.monotonic() - began
        # every answer is awaited, or the next command would get this one's
        for rank in commands:
            reply = self._links[rank].answer()
            while reply.error is not None and _is_short(reply.error) and self._make_room():
                self._take(rank, reply)
                reply = self._links[rank].do(commands[rank])
            seconds[rank] = reply.seconds
            try:
                found[rank] = self._value(rank, reply)
            except Exception as error:
                first = first or error
        self._meter.took(kind, seconds, found)
        return found, first

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _take(self, rank: int, reply: Reply) -> None:
        self._shortages += reply.shortages
        self.token_budgets[rank] = dict(reply.token_budgets)
        self._num_recomputed[rank] = reply.num_recomputed

    def _value(self, rank: int, reply: Reply) -> Any:
        self._take(rank, reply)
        if reply.error is not None:
            raise reply.error from reply.cause
        return reply.value


def _is_short(error: BaseException) -> bool:
    return isinstance(error, SampleTooLargeError) or is_out_of_memory(error)
