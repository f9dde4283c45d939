"""The sizes of an executor."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.core.memory_records import GradientCheckpointing
from cohort.core.numerics import Numerics

__all__ = ["ExecutorSettings"]


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """Sizes of an executor. None of them changes a trial's numbers but ``numerics``, by rounding.

    Attributes:
        num_slots: Most resident trials.
        num_rank_rows: Most rank rows of resident trials (each takes its rank rounded up to 16).
        token_budget: Most tokens of one micro-batch; a longer sample stands alone.
        evaluation_token_budget: The same for evaluation, which keeps no activations.
        graph_tokens: On a GPU with the grouped kernels, micro-batches of fewer tokens are recorded as CUDA graphs and
            replayed; 0 launches every pass kernel by kernel.
        graph_bytes: Most bytes reserved for recorded passes before the first is; None for as many as the largest takes.
        gradient_checkpointing: When a training pass recomputes its layers instead of keeping their activations.
        keep_tokens: Under ``auto``, training passes of more tokens are recomputed from the start; None for none while
            memory lasts.
        answer_tokens: Most positions whose keys and values are kept for answers that trials train on; 0 without any.
        numerics: On a GPU, whether a trial's bits may follow from its pack. The products of a decoder are those of the
            executor that was built for it last.
    """

    num_slots: int
    num_rank_rows: int
    token_budget: int
    evaluation_token_budget: int
    graph_tokens: int = 0
    graph_bytes: int | None = None
    gradient_checkpointing: GradientCheckpointing = GradientCheckpointing.AUTO
    keep_tokens: int | None = None
    answer_tokens: int = 0
    numerics: Numerics = Numerics.FAST

    def __post_init__(self) -> None:
        for name in ("num_slots", "num_rank_rows", "token_budget", "evaluation_token_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("graph_tokens", "answer_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.graph_bytes is not None and self.graph_bytes < 0:
            raise ValueError(f"graph_bytes must not be negative, got {self.graph_bytes}")
