"""Ids, keys and names of blobs. The bytes they are made of come from a source that a simulation can seed."""

from __future__ import annotations

import hashlib
import secrets
from random import Random
from typing import Protocol

__all__ = [
    "RandomSource",
    "SeededSource",
    "SystemSource",
    "derived_id",
    "key_digest",
    "new_blob_name",
    "new_id",
    "new_key_text",
]

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_BYTES = 18
_KEY_BYTES = 32


class RandomSource(Protocol):
    """The source of all that must not be guessed."""

    def token_bytes(self, count: int) -> bytes:
        """Return ``count`` bytes."""
        ...


class SystemSource:
    """The operating system's randomness."""

    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)


class SeededSource:
    """The same bytes for the same seed: for simulations and tests, never for a service."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)


def _base62(content: bytes) -> str:
    number, letters = int.from_bytes(content, "big"), []
    # a fixed length, so that ids of one kind look alike: 6 bits hold a letter at most
    for _ in range(-(-len(content) * 8 // 6)):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return "".join(letters)


def new_id(source: RandomSource, prefix: str) -> str:
    """Return an id such as ``ftjob-`` and 24 letters and digits (143 bits)."""
    return prefix + _base62(source.token_bytes(_ID_BYTES))


def derived_id(prefix: str, *parts: str) -> str:
    """Return an id that looks like one of :func:`new_id` and follows from ``parts``: the same parts, the same id."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    return prefix + _base62(digest[:_ID_BYTES])


def new_key_text(source: RandomSource, *, prefix: str) -> str:
    """Return a key: ``prefix`` and 32 random bytes in letters and digits that survive shells and headers."""
    content = source.token_bytes(_KEY_BYTES)
    # base62 above drops bits of long inputs; hex keeps all 256
    return prefix + content.hex()


def key_digest(text: str) -> str:
    """Return what is stored of a key: SHA-256 suffices for 256 random bits, which no list of passwords holds."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def new_blob_name(source: RandomSource) -> str:
    """Return a name below the root of the blobs; the first folder keeps folders small."""
    name = source.token_bytes(16).hex()
    return f"{name[:2]}/{name}"
