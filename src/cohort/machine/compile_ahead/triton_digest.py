"""Triton's digest of its own files, by which it finds what it compiled: computed once on a machine, and kept.

Triton reads a library of hundreds of megabytes for it at the first launch of every process, half a second. The digest
follows from the files, so it is kept for as long as their names, sizes and times of change stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import write_text

__all__ = ["identify_triton"]

_FOLDER = "triton_digests"
# what Triton reads for its digest ends so
_READ = (".py", ".so", ".pyd")


def identify_triton() -> None:
    """Give Triton the digest that it computed before, or have it compute one now; a first launch needs it.

    A version that finds kernels otherwise has nothing to read.
    """
    with contextlib.suppress(ImportError, OSError):
        from triton.runtime import cache

        compute = getattr(cache, "triton_key", None)
        if compute is None:
            return
        kept = default_cache_directory() / _FOLDER / f"{_state_of(Path(cache.__file__).parent.parent)}.json"
        digest = _read(kept)
        if digest is None:
            digest = compute()
            # a cache that cannot be written only costs time
            with contextlib.suppress(Exception):
                write_text(kept, json.dumps({"digest": digest, "sha256": _sha256(digest)}) + "\n", is_flushed=False)
        cache.triton_key = lambda: digest


def _read(kept: Path) -> str | None:
    """Return the digest of a file; None where there is none, or it is damaged."""
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        digest = found["digest"]
        return digest if _sha256(digest) == found["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _state_of(package: Path) -> str:
    """Return a name of how the files of Triton's package are now: other files have another name."""
    digest = hashlib.sha256()
    for path, status in sorted(_files(package)):
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}\n".encode())
    return digest.hexdigest()[:32]


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            elif entry.name.endswith(_READ):
                yield entry.path, entry.stat()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
