"""Memory that the other processes of this machine may open: of a GPU by CUDA IPC, of the host by a descriptor.

The owner makes the memory and gives out a handle; nothing is left behind when a process dies, since neither kind has
a name in a file system.
"""

from __future__ import annotations

import inspect
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from cohort.ranks.sent_parts import PartAddress

__all__ = ["BytesHandle", "can_share", "open_bytes", "share_bytes"]


@dataclass(frozen=True, kw_only=True)
class BytesHandle:
    """Where to open the memory of another process.

    Attributes:
        num_bytes: How much it is.
        process_id, descriptor: Of the owner, for memory of the host.
        sender: Where its rows can be asked for, where it cannot be opened.
        opened_by: torch's function that opens memory of a GPU, and its arguments; None for memory of the host.
    """

    num_bytes: int
    process_id: int = 0
    descriptor: int = -1
    sender: PartAddress | None = None
    opened_by: tuple[Callable[..., Tensor], tuple[Any, ...]] | None = None


def can_share(device: torch.device, *, num_ranks: int) -> str | None:
    """Return why the ranks of this machine cannot read each other's memory; None where they can.

    Args:
        num_ranks: Rank i is on GPU i.
    """
    if device.type != "cuda":
        return None if hasattr(os, "memfd_create") else "this system has no anonymous shared memory"
    for one in range(num_ranks):
        for other in range(num_ranks):
            if one != other and not torch.cuda.can_device_access_peer(one, other):
                return f"GPU {one} cannot read the memory of GPU {other}"
    return None


def share_bytes(num_bytes: int, *, device: torch.device) -> tuple[Tensor, BytesHandle]:
    """Return zeroed memory, uint8 [num_bytes], and the handle with which other processes open it."""
    if device.type == "cuda":
        shared = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        return shared, BytesHandle(num_bytes=num_bytes, opened_by=reduce_tensor(shared))
    descriptor = os.memfd_create("cohort-weights")
    os.truncate(descriptor, num_bytes)
    return _mapped(descriptor, num_bytes), BytesHandle(
        num_bytes=num_bytes, process_id=os.getpid(), descriptor=descriptor
    )


def open_bytes(handle: BytesHandle, *, device: torch.device | None = None) -> Tensor:
    """Return the memory of another process, uint8 [num_bytes]; the owner has filled it and waited until it is full.

    Args:
        handle: Where it is.
        device: The GPU into whose address space memory of a GPU is mapped, which may be another one: its copies and
            kernels read it over the link as they read their own, also in a CUDA graph. None for the owner's GPU.

    Raises:
        OSError, RuntimeError: it cannot be opened.
    """
    if handle.opened_by is not None:
        rebuild, arguments = handle.opened_by
        if device is None:
            return rebuild(*arguments)
        given = inspect.signature(rebuild).bind(*arguments)
        # the owner has waited, and its event belongs to its GPU
        index = torch.cuda.current_device() if device.index is None else device.index
        given.arguments |= {"storage_device": index, "event_sync_required": False}
        return rebuild(*given.args, **given.kwargs)
    descriptor = os.open(f"/proc/{handle.process_id}/fd/{handle.descriptor}", os.O_RDWR)
    try:
        return _mapped(descriptor, handle.num_bytes)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, num_bytes: int) -> Tensor:
    # the tensor keeps the map alive
    return torch.frombuffer(mmap.mmap(descriptor, num_bytes), dtype=torch.uint8)
