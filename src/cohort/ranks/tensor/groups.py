"""The ranks that divide one model, and what they exchange: counted, and the identity for one rank."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["DistributedGroup", "OneRank", "RankGroup", "ThreadGroup", "run_threads"]

_T = TypeVar("_T")


class RankGroup(Protocol):
    """One rank's view of its group. All ranks call the same collectives in the same order.

    Attributes:
        counts: How often each collective ran, by name.
    """

    counts: Counter[str]

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors; the argument may be overwritten."""
        ...

    def all_gather(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return each rank's tensor, all of one shape, in the order of ranks."""
        ...


class OneRank:
    """A group of one rank: nothing is exchanged."""

    rank, size = 0, 1

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor) -> tuple[Tensor, ...]:
        return (tensor,)


class DistributedGroup:
    """The ranks of ``torch.distributed``: NCCL on GPUs, gloo on CPUs."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Wrap a process group, the default one for None; ``torch.distributed`` is initialised."""
        self._group = group
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self.counts: Counter[str] = Counter()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def all_reduce(self, tensor: Tensor) -> Tensor:
        if self._size == 1:
            return tensor
        self.counts["all_reduce"] += 1
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, group=self._group)
        return tensor

    def all_gather(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if self._size == 1:
            return (tensor,)
        self.counts["all_gather"] += 1
        found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self._size)]
        dist.all_gather(found, tensor.contiguous(), group=self._group)
        return tuple(found)


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
