"""Counter-based seeds: a draw depends on what it is for, never on when or where it happens."""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that is a pure function of ``parts``.

    The same parts give the same seed on every machine and Python version; the type of a part counts
    (``1`` and ``"1"`` differ).
    """
    text = "".join([f"{type(part).__name__}:{part};" for part in parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
