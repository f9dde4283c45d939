"""Whether a disk has room: asked before anything is accepted, and before running jobs must write."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["Room", "free_bytes"]

# room that comes and goes around the bound must not pause and resume jobs each time
_BACK = 1.25


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Room:
    """Watches the disk of a folder.

    Attributes:
        is_there: Whether there is room, as of the last look.
    """

    def __init__(self, folder: Path, *, least_bytes: int) -> None:
        self._folder, self._least_bytes = folder, least_bytes
        self.is_there = True

    def look(self) -> bool:
        """Look again, and return whether there is room."""
        try:
            free = free_bytes(self._folder)
        except OSError:
            # a disk that cannot be asked cannot be written either
            free = 0
        self.is_there = free >= self._least_bytes * (1.0 if self.is_there else _BACK)
        return self.is_there
