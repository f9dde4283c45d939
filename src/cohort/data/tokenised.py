"""Tokenised rows: what training reads. Plain arrays, no torch, shared by all trials of a task.

Shapes:  N samples · T tokens of all samples
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["AnswerScoring", "ReferenceFiles", "Sample", "TokenisedRows"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row. ``sample_id`` is its index in its :class:`TokenisedRows`.

    Attributes:
        tokens: int32 [L], at least 2 tokens.
        trained: bool [L]; True where the token is a training target. Entry 0 is always False, as nothing predicts it.
        answer_start: The first token of the answer, of rows whose prompt and answer are told apart; else 0.
        is_desirable: Whether the answer is one to learn, of rows with a label.
        reference_logp: ``log p`` of the answer by the reference model, in nats; 0 where none is needed.
        source: ``file:line``, for messages.
    """

    sample_id: int
    tokens: NDArray[np.int32]
    trained: NDArray[np.bool_]
    answer_start: int = 0
    is_desirable: bool = True
    reference_logp: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class ReferenceFiles:
    """An adapter that trials are held to: its directory, and what is in it.

    Attributes:
        directory: Where its files are.
        sha256: Over their content (hex). Another adapter may take its place while tasks that use the first one train.
    """

    directory: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class AnswerScoring:
    """What turns an answer to a row into a reward, for objectives that sample answers. It travels with the rows.

    Attributes:
        tokenizer: Directory or hub id of the tokenizer that turns answers into text.
        rewards: The task's reward functions; what they are is for those who call them.
        num_generations: Answers that are drawn to each row of an evaluation; 0 takes the likeliest one.
        chat_template: The template that conversations go on with; None for the tokenizer's own.
    """

    tokenizer: str
    rewards: Hashable
    num_generations: int = 0
    chat_template: str | None = None


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
        answer_starts: int64 [N], the place of the first token of each row's answer; empty where rows are not divided.
        labels: bool [N], whether each answer is desirable; empty where rows have no label.
        reference_logps: float64 [N], ``log p`` of each answer by the reference model; empty where none is needed.
        reference_adapter: The adapter that these are of; None for the frozen base model.
        scoring: What rewards answers to these rows, which are prompts; None where none are sampled.
    """

    tokens_T: NDArray[np.int32]
    trained_T: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    prompts: tuple[str, ...]
    references: tuple[str, ...]
    sources: tuple[str, ...]
    fingerprint: str
    columns: tuple[str, ...] = ()
    answer_starts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    labels: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    reference_logps: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, dtype=np.float64))
    reference_adapter: ReferenceFiles | None = None
    scoring: AnswerScoring | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [N]."""
        return np.diff(self.offsets)

    def group_lengths(self, size: int) -> NDArray[np.int64]:
        """Return the tokens of each group of ``size`` rows, int64 [N / size]."""
        lengths: NDArray[np.int64] = self.lengths.reshape(-1, size).sum(axis=1)
        return lengths

    def sample(self, sample_id: int) -> Sample:
        """Return row ``sample_id`` as views into the flat arrays."""
        start, end = int(self.offsets[sample_id]), int(self.offsets[sample_id + 1])
        return Sample(
            sample_id=sample_id,
            tokens=self.tokens_T[start:end],
            trained=self.trained_T[start:end],
            answer_start=int(self.answer_starts[sample_id]) if len(self.answer_starts) else 0,
            is_desirable=bool(self.labels[sample_id]) if len(self.labels) else True,
            reference_logp=float(self.reference_logps[sample_id]) if len(self.reference_logps) else 0.0,
            source=self.sources[sample_id] if self.sources else "",
        )
