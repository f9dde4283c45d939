"""What a base model is known by: SHA-256 over the content of its files."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from cohort.core.daemon_thread import begin_in_thread
from cohort.prepare.file_digests import kept_digest

__all__ = ["model_fingerprint", "start_fingerprint"]

# each file is hashed by one core
READERS = 4
_NAME = "cohort-digests"


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
    for path, of_file in [(path, begin_in_thread(_NAME, read, path)) for path in paths]:
        digest.update(path.name.encode())
        digest.update(of_file.result())
    return digest.hexdigest()


def start_fingerprint(directory: Path) -> Future[str]:
    """Begin :func:`model_fingerprint`, which reads all of the model once more; a process may end before it has."""
    return begin_in_thread(_NAME, model_fingerprint, directory)
