"""Tokenised rows: what training reads. Plain arrays, no torch, shared by all trials of a task.

Shapes:  N samples · T tokens of all samples
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sample", "TokenisedRows"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row. ``sample_id`` is its index in its :class:`TokenisedRows`.

    Attributes:
        tokens: int32 [L], at least 2 tokens.
        trained: bool [L]; True where the token is a training target. Entry 0 is always False, as nothing predicts it.
    """

    sample_id: int
    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class TokenisedRows:
    """Ragged rows in two flat arrays.

    Attributes:
        tokens_T: int32, all rows one after the other.
        trained_T: bool, aligned with ``tokens_T``.
        offsets: int64 [N + 1]; row i is ``tokens_T[offsets[i]:offsets[i + 1]]``.
        prompts: The text to generate from, by row, for metrics such as exact match; empty string where a row has none.
        references: The expected text by row, for such metrics.
        sources: ``file:line`` by row, for messages.
        columns: Each row as its file has it, as a JSON object, for metrics; empty for rows that are only trained on.
        fingerprint: SHA-256 over content, tokenizer and every setting that shaped it (hex).
    """

    tokens_T: NDArray[np.int32]
    trained_T: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    prompts: tuple[str, ...]
    references: tuple[str, ...]
    sources: tuple[str, ...]
    fingerprint: str
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [N]."""
        return np.diff(self.offsets)

    def sample(self, sample_id: int) -> Sample:
        """Return row ``sample_id`` as views into the flat arrays."""
        start, end = int(self.offsets[sample_id]), int(self.offsets[sample_id + 1])
        return Sample(sample_id=sample_id, tokens=self.tokens_T[start:end], trained=self.trained_T[start:end])
