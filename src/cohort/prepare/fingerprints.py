"""What a base model is known by: SHA-256 over the content of its files."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cohort.prepare.file_digests import kept_digest

__all__ = ["model_fingerprint", "start_fingerprint"]

# each file is hashed by one core
READERS = 4


def model_fingerprint(directory: Path, *, digest_of: Callable[[Path], bytes] = kept_digest) -> str:
    """Return the SHA-256 over the base model's configuration and weight files.

    Args:
        directory: The model's.
        digest_of: Returns the SHA-256 of a file; several files at once.
    """
    # weights and configuration only: a model card or tokenizer changes no product
    paths = sorted([*directory.glob("*.safetensors"), directory / "config.json"])
    reading = threading.Semaphore(READERS)

    def read(path: Path) -> bytes:
        with reading:
            return digest_of(path)

    digest = hashlib.sha256()
    for path, of_file in [(path, _in_thread(read, path)) for path in paths]:
        digest.update(path.name.encode())
        digest.update(of_file.result())
    return digest.hexdigest()


def start_fingerprint(directory: Path) -> Future[str]:
    """Begin :func:`model_fingerprint`, which reads all of the model once more; a process may end before it has."""
    return _in_thread(model_fingerprint, directory)


def _in_thread(function: Callable[[Path], Any], path: Path) -> Future[Any]:
    """Begin a function in a thread of its own.

    The interpreter waits for the threads of a pool before it ends: a task that is refused would end minutes later.
    """
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(function(path))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="cohort-digests", daemon=True).start()
    return found
