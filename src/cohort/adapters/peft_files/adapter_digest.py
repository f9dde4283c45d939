"""The content of an adapter's files as one number."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cohort.adapters.peft_files.peft_format import CONFIG_FILE, WEIGHTS_FILE

__all__ = ["adapter_digest"]


def adapter_digest(directory: Path) -> str:
    """Return the SHA-256 over the files of an adapter (hex)."""
    digest = hashlib.sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with (directory / name).open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()
