"""Files that hold something else than rows of text: packed, not fetched, or of another kind, told by how they begin."""

from __future__ import annotations

from cohort.data.problems import BadRowError, ProblemKind

__all__ = ["other_content", "too_long_row"]

_BEGINNINGS: tuple[tuple[tuple[bytes, ...], str, str], ...] = (
    ((b"\x1f\x8b",), "a gzip file", "Unpack it: `gunzip -c FILE > NEW_FILE`."),
    ((b"PK\x03\x04",), "a zip file", "Unpack it: `unzip FILE`."),
    ((b"PAR1",), "a parquet file", "Name the file .parquet."),
    (
        (b"version https://git-lfs",),
        "a Git LFS pointer, which stands for the file",
        "Fetch the file itself: `git lfs pull`.",
    ),
    (
        (b"<!doctype html", b"<html"),
        "an HTML page",
        "Download the file itself; on a web page of a repository use its raw or download link.",
    ),
)
# a tokenizer takes about 45 bytes of memory for a byte of text, and minutes for a row of hundreds of megabytes
_MOST_ROW_BYTES = 16 << 20


def other_content(data: bytes) -> BadRowError | None:
    """Return the problem of a file whose content is no text of rows, whatever its name says; None for any other."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "Save the file as UTF-8: `iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE`."
        return _of_file(found="UTF-16 text", allowed="UTF-8 text", hint=hint)
    begin = data[:64].lstrip().lower()
    for marks, what, hint in _BEGINNINGS:
        if data.startswith(marks) or begin.startswith(marks):
            return _of_file(found=what, allowed="a text file of rows", hint=hint)
    return None


def too_long_row(num_bytes: int) -> BadRowError | None:
    """Return the problem of a row of ``num_bytes``; None where it can be tokenised."""
    if num_bytes <= _MOST_ROW_BYTES:
        return None
    return BadRowError(
        kind=ProblemKind.UNREADABLE,
        found=f"a row of {num_bytes:,} bytes",
        allowed=f"at most {_MOST_ROW_BYTES:,} bytes, hundreds of times any model's context",
        hint="Split its text over several rows, or remove it.",
    )


def _of_file(*, found: str, allowed: str, hint: str) -> BadRowError:
    # skipping rows cannot help where the whole file is of another kind
    return BadRowError(kind=ProblemKind.INPUT, found=found, allowed=allowed, hint=hint)
