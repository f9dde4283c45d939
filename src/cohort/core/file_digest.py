"""The SHA-256 of a file, computed while other threads work."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["file_digest"]

# Between two blocks the interpreter's lock is asked for, which a thread that launches kernels gives away every 5 ms: a
# block has to take longer than that (30 ms at 1.1 GB/s), or a digest next to such a thread takes twice as long.
_BLOCK_BYTES = 32 << 20


def file_digest(path: Path) -> bytes:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(min(_BLOCK_BYTES, max(1, path.stat().st_size))))
    with path.open("rb", buffering=0) as opened:
        while num_bytes := opened.readinto(block):
            digest.update(block[:num_bytes])
    return digest.digest()
