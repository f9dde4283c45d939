"""Content hashes of large files, kept: a base model is read once to check it, not before every prompt.

A file counts as unchanged while its path, inode, size and both times are. Writing to a file changes its ctime,
which no program can set.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import write_text
from cohort.core.errors import StorageFullError
from cohort.core.file_digest import file_digest

__all__ = ["kept_digest"]

_FOLDER = "file-digests"
# the times of a file have ticks of some milliseconds, and of seconds on some network file systems: a file that was
# written so recently could change again without showing it
_SETTLED_SECONDS = 5.0


def kept_digest(path: Path, *, cache_directory: Path | None = None) -> bytes:
    """Return the SHA-256 of a file's content, from the cache where the file has not changed since."""
    resolved = path.resolve()
    folder = (default_cache_directory() if cache_directory is None else cache_directory) / _FOLDER
    kept = folder / f"{hashlib.sha256(str(resolved).encode()).hexdigest()[:32]}.json"
    stamp = _stamp(resolved)
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["stamp"] == stamp:
            return bytes.fromhex(found["sha256"])
    digest = file_digest(resolved)
    newest = max(stamp[-2:]) / 1e9
    if _stamp(resolved) == stamp and time.time() - newest > _SETTLED_SECONDS:
        # the cache only saves time: a full or read-only disk is no reason to stop
        with suppress(OSError, StorageFullError):
            text = json.dumps({"path": str(resolved), "stamp": stamp, "sha256": digest.hex()}) + "\n"
            # a part of it reads as none, so nothing waits for the disk
            write_text(kept, text, is_flushed=False)
    return digest


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
