"""Choosing rows by seed and content: the validation share, and the rows evaluations look at.

Rows are ordered by a keyed hash of what they contain, so a choice depends on the seed and the rows themselves, not
on their place in the file, and rows that are the same always go the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

from cohort.core.seeds import derive_seed

__all__ = ["choose_rows", "duplicates_of_earlier", "split_off_share"]


def split_off_share(contents: Sequence[bytes], *, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Return (training, validation) row indices, ascending, with ``round(share * N)`` validation rows if possible.

    Rows of equal content stay together, so there can be fewer validation rows than asked, never more; none when the
    share is less than half a row, or when every group of equal rows is larger than the share.
    """
    target = round(share * len(contents))
    groups: dict[bytes, list[int]] = {}
    for index, content in enumerate(contents):
        groups.setdefault(content, []).append(index)
    chosen: list[int] = []
    for content in sorted(groups, key=lambda entry: _rank(entry, seed=derive_seed(seed, "validation"))):
        if len(chosen) + len(groups[content]) <= target:
            chosen.extend(groups[content])
        if len(chosen) == target:
            break
    picked = set(chosen)
    return [index for index in range(len(contents)) if index not in picked], sorted(chosen)


def choose_rows(contents: Sequence[bytes], *, limit: int | None, seed: int, purpose: str = "evaluation") -> list[int]:
    """Return the indices of at most ``limit`` rows, ascending; all rows when ``limit`` is None.

    Which rows depends on their contents, the seed and ``purpose`` alone.
    """
    if limit is None or limit >= len(contents):
        return list(range(len(contents)))
    key = derive_seed(seed, purpose)
    order = sorted(range(len(contents)), key=lambda index: (_rank(contents[index], seed=key), index))
    return sorted(order[:limit])


def duplicates_of_earlier(contents: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return (row, first row with the same content) for every row that repeats an earlier one."""
    first: dict[Hashable, int] = {}
    pairs = []
    for index, content in enumerate(contents):
        earlier = first.setdefault(content, index)
        if earlier != index:
            pairs.append((index, earlier))
    return pairs


def _rank(content: bytes, *, seed: int) -> bytes:
    return hashlib.blake2b(content, digest_size=16, key=seed.to_bytes(8, "little")).digest()
