"""The CPU cores that this process may use."""

from __future__ import annotations

import os

__all__ = ["num_cores"]


def num_cores() -> int:
    """Return the CPU cores that this process may use, which are fewer in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
