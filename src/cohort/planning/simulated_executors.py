"""The executors of a simulated cluster: which tasks share each, what is left of them, and when each will end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cohort.scheduling.cost.shared_time import SharedWork, shared_time, works_after

__all__ = ["SimulatedExecutor", "SimulatedExecutors"]


@dataclass(frozen=True, kw_only=True)
class SimulatedExecutor:
    """Tasks that share an executor since a moment.

    Attributes:
        tasks: In the order in which they came.
        works: What each had left at that moment.
        since: The moment.
        scale: Seconds of the simulation by predicted second: a task alone takes what its option says.
        ends: When each task ends.
        room_at: When there is room for another one; None: never.
    """

    tasks: tuple[str, ...]
    works: tuple[SharedWork, ...]
    since: float
    scale: float
    ends: tuple[float, ...]
    room_at: float | None

    @classmethod
    def of(
        cls, tasks: tuple[str, ...], works: tuple[SharedWork, ...], *, since: float, scale: float
    ) -> SimulatedExecutor:
        time = shared_time(works)
        room_at = None if time.room_from is None else since + scale * time.room_from
        ends = tuple(since + scale * end for end in time.ends)
        return cls(tasks=tasks, works=works, since=since, scale=scale, ends=ends, room_at=room_at)

    def left(self, now: float) -> dict[str, SharedWork]:
        """Return what is left of each task that has not ended."""
        after = works_after(self.works, (now - self.since) / self.scale if self.scale else 0.0)
        return {task: work for task, work in zip(self.tasks, after, strict=True) if work.requests}


class SimulatedExecutors:
    """The executors by the GPUs that they are on."""

    def __init__(self) -> None:
        self._by_gpus: dict[tuple[int, ...], SimulatedExecutor] = {}

    def start(self, task: str, work: SharedWork, *, gpu_ids: tuple[int, ...], now: float, seconds: float) -> None:
        """Let a task start by itself, which takes ``seconds``."""
        predicted = shared_time([work]).seconds
        scale = seconds / predicted if predicted else 1.0
        self._by_gpus[gpu_ids] = SimulatedExecutor.of((task,), (work,), since=now, scale=scale)

    def join(
        self, task: str, work: SharedWork, *, hosts: Collection[str], gpu_ids: tuple[int, ...], now: float
    ) -> Mapping[str, float]:
        """Let a task join ``hosts`` on ``gpu_ids``; return when each of them, and it, ends."""
        there = self._by_gpus[gpu_ids]
        # by rounded steps a task that has ended may have one left
        left = {name: own for name, own in there.left(now).items() if name in hosts}
        left[task] = work
        found = SimulatedExecutor.of(tuple(left), tuple(left.values()), since=now, scale=there.scale)
        self._by_gpus[gpu_ids] = found
        return dict(zip(found.tasks, found.ends, strict=True))

    def clear(self, gpu_ids: tuple[int, ...]) -> None:
        """Forget what was on GPUs that a task without such a work has taken."""
        self._by_gpus.pop(gpu_ids, None)

    def room_at(self, gpu_ids: tuple[int, ...]) -> float | None:
        """Return when there is room next to the tasks on ``gpu_ids``."""
        found = self._by_gpus.get(gpu_ids)
        return None if found is None else found.room_at

    def left(self, gpu_ids: tuple[int, ...], *, now: float) -> tuple[tuple[str, SharedWork], ...]:
        """Return what is left of each task on ``gpu_ids``."""
        found = self._by_gpus.get(gpu_ids)
        return () if found is None else tuple(found.left(now).items())
