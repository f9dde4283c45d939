"""Ranks of one process, a thread each: what each rank computes can be compared without other processes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")


class _Meeting:
    """Where the threads of one group leave their tensors for each other."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.left: list[Tensor | None] = [None] * size


class ThreadGroup:
    """The ranks of one process, a thread each: the share of each rank can be computed and compared without others."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self._meeting = rank, meeting
        self.size = len(meeting.left)
        self.counts: Counter[str] = Counter()

    @classmethod
    def of(cls, size: int) -> tuple[ThreadGroup, ...]:
        """Return the ranks of a new group."""
        meeting = _Meeting(size)
        return tuple(cls(rank, meeting) for rank in range(size))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if self.size == 1:
            return tensor
        self.counts["all_reduce"] += 1
        # all ranks add in one order, so that they have the same bits
        return torch.stack(self._exchange(tensor)).sum(dim=0)

    def all_gather(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if self.size == 1:
            return (tensor,)
        self.counts["all_gather"] += 1
        return tuple(found.clone() for found in self._exchange(tensor))

    def abort(self) -> None:
        """Let the others of the group fail instead of waiting for this rank."""
        self._meeting.barrier.abort()

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        self._meeting.left[self.rank] = tensor.detach().clone()
        self._meeting.barrier.wait()
        found = [left for left in self._meeting.left if left is not None]
        # no rank leaves the next tensor before all have read this one
        found = [left.clone() for left in found]
        self._meeting.barrier.wait()
        return found


def run_threads(size: int, work: Callable[[ThreadGroup], _T]) -> list[_T]:
    """Return what ``work`` returns on each rank of a new group of threads.

    Raises:
        BaseException: the first that a rank raised.
    """
    groups = ThreadGroup.of(size)
    results: list[_T | None] = [None] * size
    errors: list[BaseException] = []
    grad = torch.is_grad_enabled()

    def run(group: ThreadGroup) -> None:
        try:
            with torch.set_grad_enabled(grad):
                results[group.rank] = work(group)
        except BaseException as error:
            errors.append(error)
            group.abort()

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return [result for result in results if result is not None]
