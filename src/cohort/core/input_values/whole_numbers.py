"""Whole numbers in what programs of other people send."""

from __future__ import annotations

__all__ = ["read_whole"]

_MOST_DIGITS = 18


def read_whole(text: str) -> int | None:
    """Return the whole number that ``text`` is, 0 or more, which fits into 64 bits; None where it is none.

    ``str.isdigit`` also takes superscripts, and digits without end, which ``int`` refuses.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
