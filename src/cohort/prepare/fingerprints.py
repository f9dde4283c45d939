"""What a base model is known by: SHA-256 over the content of its files, read once and not before every prompt.

A file counts as unchanged while its path, inode, size and both times are. Writing to a file changes its ctime,
which no program can set.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import write_text
from cohort.core.errors import StorageFullError
from cohort.core.file_digest import file_digest
from cohort.core.process.daemon_thread import begin_in_thread
from cohort.models.remote_code import may_run_code

__all__ = ["kept_digest", "model_fingerprint", "start_fingerprint"]

# each file is hashed by one core
READERS = 4
_NAME = "cohort-digests"
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


def model_fingerprint(directory: Path, *, digest_of: Callable[[Path], bytes] = kept_digest) -> str:
    """Return the SHA-256 over the base model's configuration and weight files, and its code where that is run.

    Args:
        directory: The model's.
        digest_of: Returns the SHA-256 of a file; several files at once.
    """
    # weights and configuration only: a model card or tokenizer changes no product
    code = directory.glob("*.py") if may_run_code(directory) else ()
    paths = sorted([*directory.glob("*.safetensors"), *code, directory / "config.json"])
    reading = threading.Semaphore(READERS)

    def read(path: Path) -> bytes:
        with reading:
            return digest_of(path)

    digest = hashlib.sha256()
    for path, of_file in [(path, begin_in_thread(_NAME, read, path)) for path in paths]:
        digest.update(path.name.encode())
        digest.update(of_file.result())
    return digest.hexdigest()


def start_fingerprint(directory: Path) -> Future[str]:
    """Begin :func:`model_fingerprint`, which reads all of the model once more; a process may end before it has."""
    return begin_in_thread(_NAME, model_fingerprint, directory)
