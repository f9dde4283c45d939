"""What a reader yields: a row with its line, or what is wrong with it or with the whole file; and a file as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.data.files.other_content import other_content
from cohort.data.problems import BadRowError, ProblemKind

__all__ = ["Entry", "decoded_document", "not_utf8", "of_file", "unreadable"]

Entry = tuple[int, Mapping[str, Any] | BadRowError]


def of_file(*, found: str, allowed: str, hint: str) -> BadRowError:
    """Return the problem of a whole file; skipping rows cannot help where it is of another kind."""
    return BadRowError(kind=ProblemKind.INPUT, found=found, allowed=allowed, hint=hint)


def unreadable(*, found: str, allowed: str, hint: str) -> BadRowError:
    """Return the problem of one row."""
    return BadRowError(kind=ProblemKind.UNREADABLE, found=found, allowed=allowed, hint=hint)


def not_utf8(byte: int, *, column: int) -> BadRowError:
    """Return the problem of a byte that is no UTF-8; ``column`` counts from 1."""
    return unreadable(
        found=f"the byte 0x{byte:02x} at place {column} of the line",
        allowed="UTF-8 text",
        hint="Save the file as UTF-8, from Windows-1252 for example: `iconv -f CP1252 -t UTF-8 FILE > NEW_FILE`.",
    )


def decoded_document(data: bytes) -> str | Entry:
    """Return a file as text, or what is wrong with the whole of it."""
    if (other := other_content(data)) is not None:
        return 1, other
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        line = data.count(b"\n", 0, error.start) + 1
        return line, not_utf8(data[error.start], column=error.start - line_start + 1)
