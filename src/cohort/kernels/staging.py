"""Host arrays on their way to a device, and numbers on their way back, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["lists_unwaited", "pinned", "stage_together", "to_device_unwaited"]


def pinned(host: Tensor) -> Tensor:
    """Return a host tensor in pinned memory, which copies do not wait for; itself where there is no room for that."""
    try:
        return host.pin_memory()
    except RuntimeError:
        # a machine may limit locked memory: the transfer is waited for, and nothing else changes
        return host


def to_device_unwaited(values: NDArray[Any], device: torch.device | str) -> Tensor:
    """Return ``values`` on ``device``; the transfer reads pinned memory in stream order, so the host goes on."""
    host = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return host.to(device)
    # the caching allocator keeps pinned memory until the copy has run
    return pinned(host).to(device, non_blocking=True)


def lists_unwaited(tensors: Sequence[Tensor]) -> Callable[[], list[list[float]]]:
    """Begin to fetch the numbers of 1-d tensors; return what gives them, once they are there.

    Only what was launched before is waited for, not what is launched from now on.
    """
    if not all(tensor.is_cuda for tensor in tensors):
        return lambda: [tensor.tolist() for tensor in tensors]
    try:
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    except RuntimeError:
        # no room for pinned memory: read at once
        found = [tensor.tolist() for tensor in tensors]
        return lambda: found
    for host, tensor in zip(hosts, tensors, strict=True):
        host.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def numbers() -> list[list[float]]:
        arrived.synchronize()
        return [host.tolist() for host in hosts]

    return numbers


def stage_together(arrays: Sequence[NDArray[np.int64]], device: torch.device | str) -> list[Tensor]:
    """Return ``arrays`` on ``device``, sent there in one transfer; on a CPU each keeps its own memory."""
    if torch.device(device).type != "cuda":
        return [to_device_unwaited(array, device) for array in arrays]
    return list(to_device_unwaited(np.concatenate(arrays), device).split([len(array) for array in arrays]))
