"""Where Triton keeps what it compiled, and whether a task has left its mark there. Nothing here imports torch."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

__all__ = ["MARKER_SUFFIX", "is_cold", "triton_cache"]

# of the files that say what is in the cache
MARKER_SUFFIX = ".compiled"


def triton_cache() -> Path | None:
    """Return where Triton keeps what it compiled; None where it is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def is_cold(cache: Path) -> bool:
    """Return whether no task has had all its kernels compiled in ``cache``."""
    return next(cache.glob(f"*{MARKER_SUFFIX}"), None) is None
