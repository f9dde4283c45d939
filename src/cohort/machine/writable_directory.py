"""Whether a directory of caches can be written, asked before minutes are spent on what is to be kept in it."""

from __future__ import annotations

import os
from pathlib import Path

from cohort.core.errors import InputError, Problem

__all__ = ["require_writable"]


def require_writable(directory: Path, *, hint: str) -> None:
    """Create ``directory`` where it is missing, and write a file in it, which is removed again.

    Args:
        directory: Where something is to be kept for later runs.
        hint: What the user can do if it cannot be written.

    Raises:
        InputError: it cannot be created or written.
    """
    # permissions do not tell: the disk may be full, mounted read-only, or a quota used up
    probe = directory / f".cohort-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise InputError(
            Problem(
                where=str(directory),
                found=error.strerror or str(error),
                allowed="a directory that can be written, which later runs read",
                hint=hint,
            )
        ) from None
