"""One tokenised row, and many of them in flat arrays."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.core.source_location import Place
from cohort.data.tokenised import TokenisedRows

__all__ = ["TokenRow", "flattened"]


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """One tokenised row.

    Attributes:
        where: Its file and line.
        tokens: int32 [L].
        trained: bool [L]; entry 0 is False.
        prompt: What generation starts from, or an empty string.
        reference: The expected text.
        columns: The row as its file has it, for metrics.
        whole: The tokens of the row that it is a piece of; empty where it is no piece.
        answer_start: The answer's first token, of rows that are compared; else None.
        other: The worse answer to the same prompt, of a pair.
        label: Whether the answer is desirable, of a row with a label.
    """

    where: Place
    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]
    prompt: str
    reference: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    whole: bytes = b""
    answer_start: int | None = None
    other: TokenRow | None = None
    label: bool | None = None

    @property
    def content(self) -> bytes:
        """What makes two rows the same: their tokens and their masks, and their label."""
        own = self.tokens.tobytes() + self.trained.tobytes()
        label = b"" if self.label is None else bytes([self.label])
        return own + label + (b"" if self.other is None else self.other.content)

    @property
    def num_trained(self) -> int:
        """Tokens the loss counts, of both answers of a pair."""
        return int(self.trained.sum()) + (0 if self.other is None else self.other.num_trained)


def flattened(rows: Sequence[TokenRow], *, identity: str, keeps_columns: bool = True) -> TokenisedRows:
    """Return ``rows`` in flat arrays; of a pair the better answer first, then the other.

    Args:
        rows: At least one.
        identity: A digest of what shaped them, for the fingerprint.
        keeps_columns: Whether metrics may ask for the rows as their files have them.
    """
    rows = [one for row in rows for one in (row, row.other) if one is not None]
    lengths = np.asarray([len(row.tokens) for row in rows], dtype=np.int64)
    tokens = np.concatenate([row.tokens for row in rows])
    trained = np.concatenate([row.trained for row in rows])
    fingerprint = hashlib.sha256(identity.encode())
    starts = np.asarray([row.answer_start for row in rows if row.answer_start is not None], dtype=np.int64)
    labels = np.asarray([row.label for row in rows if row.label is not None], dtype=np.bool_)
    for part in (tokens, trained, lengths, starts, labels):
        fingerprint.update(part.tobytes())
    return TokenisedRows(
        tokens_T=tokens,
        trained_T=trained,
        offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        prompts=tuple(row.prompt for row in rows),
        references=tuple(row.reference for row in rows),
        sources=tuple(str(row.where) for row in rows),
        fingerprint=fingerprint.hexdigest(),
        # a metric may read any of them; parquet files hold values that JSON does not have, such as dates
        columns=tuple(json.dumps(dict(row.columns), default=str) for row in rows) if keeps_columns else (),
        answer_starts=starts,
        labels=labels,
    )
