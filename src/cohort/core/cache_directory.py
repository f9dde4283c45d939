"""Where everything is kept that can be made again: tokenised rows, measurements, digests of files."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["default_cache_directory"]


def default_cache_directory() -> Path:
    """Return ``$COHORT_CACHE_DIR``, or ``~/.cache/cohort`` where it is not set."""
    configured = os.environ.get("COHORT_CACHE_DIR")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "cohort"
