"""What a base model is known by: SHA-256 over the content of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cohort.prepare.file_digests import kept_digest

__all__ = ["model_fingerprint"]

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
    digest = hashlib.sha256()
    with ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="cohort-digests") as readers:
        for path, of_file in zip(paths, readers.map(digest_of, paths), strict=True):
            digest.update(path.name.encode())
            digest.update(of_file)
    return digest.hexdigest()
