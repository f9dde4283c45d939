"""What a split was read from, as a run records it; nothing heavy is imported, for those who only look at a run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SplitInput"]


@dataclass(frozen=True, kw_only=True)
class SplitInput:
    """What one split was read from and which rows that gave, so that a later reading can be compared with it.

    The two splits are kept apart: a change of one file says nothing about the other.

    Attributes:
        num_rows_read: Rows of its files, unreadable ones included; 0 where the split is a share of the training rows.
        num_bytes: Size of its files together; None where one is a hub data set.
        files_hash: SHA-256 over the content of its files, in order (hex).
        rows_hash: SHA-256 over what is used of them: tokens, targets, prompts, references, in order (hex). Rows that
            are written otherwise and give the same tokens have the same.
    """

    num_rows_read: int
    num_bytes: int | None
    files_hash: str
    rows_hash: str
