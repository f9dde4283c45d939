"""The ranks that divide one model, and what they exchange: counted, and the identity for one rank."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["DistributedGroup", "OneRank", "RankGroup"]


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
