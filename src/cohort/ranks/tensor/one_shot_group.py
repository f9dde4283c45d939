"""Sums of small tensors over the GPUs of one host in one kernel, in which each rank reads what the others have.

A sum over ranks takes NCCL 15 to 22 us however small it is, and decoding has two a layer. Reading the others' memory
takes 7 to 10 us on 4 to 8 GPUs. Larger tensors are NCCL's: there each rank reads all ranks' bytes, NCCL's rings do not.
"""

from __future__ import annotations

import logging

import torch
import torch.distributed as dist
from torch import Tensor

from cohort.ranks.tensor.groups import DistributedGroup

__all__ = ["OneShotGroup"]

_log = logging.getLogger(__name__)
MOST_BYTES = 256 << 10


class OneShotGroup(DistributedGroup):
    """The default process group, on GPUs that can open each other's memory.

    All ranks add in the order of ranks, so that they have the same bits. Can be recorded in CUDA graphs.
    """

    def __init__(self, buffer: Tensor, group_name: str) -> None:
        """Sum through ``buffer``, symmetric memory in which the ranks have met."""
        super().__init__()
        self._buffer, self._group_name = buffer, group_name

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype) -> DistributedGroup:
        """Return such a group of all ranks; NCCL alone where the GPUs cannot open each other's memory."""
        import torch.distributed._symmetric_memory as symmetric_memory

        group = dist.group.WORLD
        assert group is not None, "torch.distributed is initialised"
        works = torch.ones(1, device=device)
        try:
            buffer = symmetric_memory.empty(MOST_BYTES // dtype.itemsize, dtype=dtype, device=device)
            symmetric_memory.rendezvous(buffer, group.group_name)
            found = cls(buffer, group.group_name)
        except RuntimeError as error:
            _log.warning("sums over ranks by NCCL alone: %s", error)
            works.zero_()
        # one rank without it, and all do without it
        dist.all_reduce(works, op=dist.ReduceOp.MIN)
        return found if bool(works.item()) else DistributedGroup()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        count = tensor.numel()
        # the kernel reads 16 bytes at a time
        is_small = count <= self._buffer.numel() and (count * tensor.element_size()) % 16 == 0
        if not is_small or tensor.dtype != self._buffer.dtype or tensor.device != self._buffer.device:
            return super().all_reduce(tensor)
        self.counts["all_reduce"] += 1
        self._buffer[:count].copy_(tensor.reshape(-1))
        summed: Tensor = torch.ops.symm_mem.one_shot_all_reduce(self._buffer[:count], "sum", self._group_name)
        return summed.view(tensor.shape)
