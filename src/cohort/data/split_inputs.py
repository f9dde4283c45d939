"""What one split of a data set was read from and which rows that gave, so that a later reading can be compared with it.

The two splits are kept apart: a change of one file says nothing about the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cohort.data.reading import InputSource, ParsedDataset
from cohort.data.sources import SourceFile, SplitName
from cohort.data.tokenised import TokenisedRows

__all__ = ["SplitInput", "split_input"]


@dataclass(frozen=True, kw_only=True)
class SplitInput:
    """A split of a data set in numbers.

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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def split_input(
    split: SplitName, rows: TokenisedRows, *, sources: Sequence[InputSource], parsed: ParsedDataset
) -> SplitInput:
    """Return what is kept of ``split``, whose used rows are ``rows``.

    Raises:
        OSError: a file that was read is gone.
    """
    own = [entry for entry in sources if entry.split == split]
    files = [entry.source.path for entry in own if isinstance(entry.source, SourceFile)]
    return SplitInput(
        num_rows_read=parsed.rows_read[split],
        num_bytes=sum(path.stat().st_size for path in files) if len(files) == len(own) else None,
        files_hash=hashlib.sha256(json.dumps([entry.digest for entry in own]).encode()).hexdigest(),
        rows_hash=_rows_hash(rows, is_chat=parsed.is_chat),
    )


def _rows_hash(rows: TokenisedRows, *, is_chat: bool) -> str:
    digest = hashlib.sha256(json.dumps([is_chat, rows.prompts, rows.references]).encode())
    for part in (rows.tokens_T, rows.trained_T, rows.offsets):
        digest.update(part.tobytes())
    return digest.hexdigest()
