"""From trained characters to trained tokens, by the tokenizer's character offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RenderedRow", "border_is_inside_token", "tokens_in_spans"]


@dataclass(frozen=True, kw_only=True)
class RenderedRow:
    """One row as text, ready to be tokenised.

    Attributes:
        text: The whole row, prompt and answers joined.
        trained_spans: Character ranges [start, end) that the loss counts, in order, not overlapping.
        add_special_tokens: Whether the tokenizer adds its own special tokens (BOS); False where a chat template
            wrote them.
        append_eos: Whether an end-of-sequence token closes the row, unless it is there already.
        prompt: What generation starts from, for metrics; empty where there is nothing to generate.
        reference: The expected text.
        columns: The row as its file has it, for metrics.
    """

    text: str
    trained_spans: tuple[tuple[int, int], ...]
    add_special_tokens: bool
    append_eos: bool
    prompt: str
    reference: str
    columns: Mapping[str, Any] = field(default_factory=dict)


def tokens_in_spans(offsets: NDArray[np.int64], *, spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which tokens hold at least one character of ``spans``, bool [L].

    ``offsets`` is int64 [L, 2]: the characters [start, end) of each token. A token that lies across a border is
    trained: the prompt part of it is known at generation, the answer part would otherwise never be learned (a one-token
    answer would vanish). Tokens of no character (special tokens the tokenizer adds) are in no span.
    """
    starts, ends = offsets[:, 0], offsets[:, 1]
    trained = np.zeros(len(offsets), dtype=np.bool_)
    for start, end in spans:
        trained |= (starts < end) & (ends > start) & (ends > starts)
    return trained


def border_is_inside_token(offsets: NDArray[np.int64], *, spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether a span starts inside a token: generation would start from other tokens than training saw."""
    return any(bool(np.any((offsets[:, 0] < start) & (offsets[:, 1] > start))) for start, _ in spans)
