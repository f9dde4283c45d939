"""Counts the kernels that this process compiles one by one, while passes wait: what compiling ahead did not know."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

__all__ = ["LateKernels"]


class LateKernels:
    """Listens to Triton from its making on; without Triton there is nothing to hear.

    Attributes:
        seconds: What compiling took, by kernel.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.number = 0
        if importlib.util.find_spec("triton") is not None:
            from triton import knobs

            knobs.compilation.listener = self._heard

    def _heard(self, *, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            return
        self.number += 1
        self.seconds[getattr(src, "name", "?")] += times.total / 1e6

    def taken(self) -> dict[str, Any]:
        """Return how many were compiled since the last call, and in how long; say which."""
        found = {"late_kernels": self.number, "late_seconds": round(sum(self.seconds.values()), 1)}
        if self.number:
            longest = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.most_common(12))
            print(f"{self.number} kernels compiled late: {longest}", flush=True)
        self.seconds.clear()
        self.number = 0
        return found
