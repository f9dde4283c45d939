"""Rank 0, which is this process, and the ranks besides it: asked one by one, or several at the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cohort.core.errors import SampleTooLargeError
from cohort.core.memory_records import MemoryShortage, PassKind
from cohort.core.rank_work import RankWork
from cohort.ranks.calls import Call, Reply, Standing
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_link import RankLink
from cohort.ranks.work_meter import WorkMeter
from cohort.training.device_memory import is_out_of_memory

__all__ = ["ReplicaRanks"]


class ReplicaRanks:
    """Ranks that work by themselves. What the answers of the others say besides values is kept here."""

    def __init__(self, local: LocalExecutor, links: Sequence[RankLink]) -> None:
        """Take ranks 1, 2, ... that were started; ``local`` is rank 0."""
        self._local, self._links = local, {link.rank: link for link in links}
        self._standings: dict[int, Standing] = {}
        self._shortages: list[MemoryShortage] = []
        self._meter = WorkMeter(1 + len(links))

    @property
    def work(self) -> tuple[RankWork, ...]:
        """What all ranks have done so far, rank 0 included."""
        return self._meter.totals

    @property
    def num_recomputed(self) -> int:
        """Training passes of the others that used gradient checkpointing."""
        return sum(standing.num_recomputed for standing in self._standings.values())

    @property
    def token_budgets(self) -> list[Mapping[PassKind, int]]:
        """Most tokens of a micro-batch of each of the others that has answered."""
        return [standing.token_budgets for standing in self._standings.values()]

    def opens_gpu_memory(self, rank: int) -> bool:
        """Return whether a rank can open the memory of this process's GPU, and the other way round."""
        return self._links[rank].opens_gpu_memory

    def take_shortages(self) -> tuple[MemoryShortage, ...]:
        """Return the others' memory shortages since the last call."""
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

    def ask(self, rank: int, call: Call) -> Any:
        """Return what a rank's call gives, or raise what it raised."""
        if rank == 0:
            return call.carried_out_by(self._local)
        self._links[rank].ask(call)
        return self._value(rank, self._links[rank].answer())

    def ask_all(self, call: Call) -> list[Any]:
        """Return what the call gives on each rank, asked one after another."""
        return [self.ask(rank, call) for rank in (0, *self._links)]

    def together(self, calls: Mapping[int, Call], passes: PassKind | None) -> tuple[dict[int, Any], Exception | None]:
        """Carry out calls on several ranks at the same time; return what they returned, and the first error.

        A rank that is out of memory with nothing of its own left to free is asked again after states of parked trials
        have left the GPUs.

        Args:
            passes: What the ranks' work counts as; None for none.
        """
        others = [rank for rank in calls if rank]
        for rank in others:
            self._links[rank].ask(calls[rank])
        found: dict[int, Any] = {}
        seconds: dict[int, float] = {}
        first: Exception | None = None
        if 0 in calls:
            began = time.monotonic()
            try:
                found[0] = calls[0].carried_out_by(self._local)
            except Exception as error:
                first = error
            seconds[0] = time.monotonic() - began
        # every answer is awaited, or the next call would get this one's
        for rank in others:
            reply = self._links[rank].answer()
            while reply.error is not None and _is_short(reply.error) and self._local.make_room():
                self._take(rank, reply)
                self._links[rank].ask(calls[rank])
                reply = self._links[rank].answer()
            seconds[rank] = reply.seconds
            try:
                found[rank] = self._value(rank, reply)
            except Exception as error:
                first = first or error
        if passes is not None:
            self._meter.took(passes, seconds, found)
        return found, first

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _take(self, rank: int, reply: Reply) -> None:
        self._shortages += reply.standing.shortages
        self._standings[rank] = reply.standing

    def _value(self, rank: int, reply: Reply) -> Any:
        self._take(rank, reply)
        if reply.error is not None:
            raise reply.error from reply.cause
        return reply.value


def _is_short(error: BaseException) -> bool:
    return isinstance(error, SampleTooLargeError) or is_out_of_memory(error)
