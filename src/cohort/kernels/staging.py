"""Host arrays on their way to a device, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["pinned", "stage_together", "to_device_unwaited"]


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


def stage_together(arrays: Sequence[NDArray[np.int64]], device: torch.device | str) -> list[Tensor]:
    """Return ``arrays`` on ``device``, sent there in one transfer; on a CPU each keeps its own memory."""
    if torch.device(device).type != "cuda":
        return [to_device_unwaited(array, device) for array in arrays]
    return list(to_device_unwaited(np.concatenate(arrays), device).split([len(array) for array in arrays]))
