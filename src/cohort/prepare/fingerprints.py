"""What files are known by: SHA-256 over their content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

__all__ = ["file_digest", "model_fingerprint"]


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def model_fingerprint(directory: Path, *, digest_of: Callable[[Path], bytes] = file_digest) -> str:
    """Return the SHA-256 over the base model's configuration and weight files; ``digest_of`` reads each file."""
    # weights and configuration only: a model card or tokenizer changes no product
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.safetensors"), directory / "config.json"]):
        digest.update(path.name.encode())
        digest.update(digest_of(path))
    return digest.hexdigest()
