"""Which code this is, where the version alone does not tell."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["code_digest"]


def code_digest() -> str:
    """Return twelve hex digits of the SHA-256 of the package's source files, in the order of their paths."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
