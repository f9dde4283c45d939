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
# suffixes of the files that the digest covers
_COVERED = (".py", ".so", ".pyd")


class _KeptDigest:
    """Takes the place of Triton's function."""

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def __call__(self) -> str:
        return self._digest


def identify_triton() -> None:
    """Give Triton the digest that it computed before, or have it compute one now; a first launch needs it.

    Once a process: the code that it runs stays, whatever becomes of the files. A version that finds kernels otherwise
    has nothing to read.
    """
    with contextlib.suppress(ImportError, OSError):
        import triton
        from triton.runtime import cache

        compute = getattr(cache, "triton_key", None)
        if compute is None or isinstance(compute, _KeptDigest):
            return
        package = Path(cache.__file__).parent.parent
        state = _state_of(package, version=triton.__version__)
        kept = default_cache_directory() / _FOLDER / f"{state}.json"
        digest = _read(kept)
        if digest is None:
            digest = compute()
            # not where they were replaced meanwhile; a cache that cannot be written only costs time
            if _state_of(package, version=triton.__version__) == state:
                with contextlib.suppress(Exception):
                    write_text(kept, json.dumps({"digest": digest, "sha256": _sha256(digest)}) + "\n", is_flushed=False)
        cache.triton_key = _KeptDigest(digest)


def _read(kept: Path) -> str | None:
    """Return the digest of a file; None where there is none, or it is damaged."""
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        digest = found["digest"]
        return digest if _sha256(digest) == found["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _state_of(package: Path, *, version: str) -> str:
    """Return a name of how the files of Triton's package are now: other files have another name."""
    digest = hashlib.sha256(version.encode())
    for path, status in sorted(_files(package)):
        times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
        digest.update(f"{path} {status.st_size} {times} {status.st_ino}\n".encode())
    return digest.hexdigest()[:32]


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            elif entry.name.endswith(_COVERED):
                yield entry.path, entry.stat()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
