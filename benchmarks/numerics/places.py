"""Where the checks run, how they draw and compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Place", "Row", "changed", "seconds"]

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and in which sizes the script runs."""

    device: str
    dtype: torch.dtype
    tiny: bool

    def draw(self, *shape: int, seed: int, std: float = 1.0) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(seed)
        drawn = torch.randn(*shape, device=self.device, generator=generator)
        return (drawn * std).to(self.dtype)


def changed(found: Tensor, expected: Tensor) -> float:
    """Return the share of entries whose bits differ."""
    if found.numel() == 0:
        return 0.0
    bits = torch.int16 if found.element_size() == 2 else torch.int32
    return float((found.contiguous().view(bits) != expected.contiguous().view(bits)).float().mean())


def seconds(work: Callable[[], object], *, repeats: int = 12) -> float:
    """Return the device time of one call."""
    if not torch.cuda.is_available():
        return 0.0
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        work()
    start.record()
    for _ in range(repeats):
        work()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / repeats / 1e3
