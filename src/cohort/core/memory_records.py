"""What passes took of a device's memory and what was changed when it ran out, as immutable records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "MARGIN_SHARE",
    "GradientCheckpointing",
    "MemoryShortage",
    "ObservedPass",
    "PassKind",
    "PassPeak",
    "PassSize",
]

# the default of memory.margin: it stays free for fragments, and for predictions that are a little low
MARGIN_SHARE = 0.05


class PassKind(StrEnum):
    """What a pass is for."""

    TRAIN = "training"
    EVALUATE = "evaluation"


class GradientCheckpointing(StrEnum):
    """When a training pass recomputes its layers in the backward pass instead of keeping their activations."""

    AUTO = "auto"
    """Where it does not fit otherwise."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class PassSize:
    """What the memory of a pass depends on.

    How many rows the last layer of a model on a CPU leaves out is no size. A bound trains all rows, so that none is
    left out; rows that are trained here and there keep more than those that are trained at their end, a part of one
    layer, which the factor between predicted and watched peaks takes up.

    Attributes:
        num_rows: Rows of the stream, filler included.
        num_trained: Rows whose loss is taken.
        rank_entries: Entries of one linear's ``S = X A^T``, as the kernels lay it out.
        head_bytes: One chunk of logits, which is all that ever exists of them.
        num_sequences: Sequences; where their rows are padded apart, each costs some.
        sum_squares: Sum of squared sequence lengths.
        regime: Which kernels ran, where they differ in what they keep; sizes of different regimes do not compare.
        recomputed: Whether layers kept only what entered them; a regime of its own in each regime.
    """

    num_rows: int
    num_trained: int
    rank_entries: int
    head_bytes: int
    num_sequences: int
    sum_squares: int
    regime: str = "plain"
    recomputed: bool = False


@dataclass(frozen=True, kw_only=True)
class PassPeak:
    """The allocator's own maximum during one pass, beyond what was allocated when it began.

    Attributes:
        forward_bytes: The maximum until its losses are known.
        backward_bytes: The maximum after that, until its gradients are; 0 where the pass only measures.
    """

    kind: PassKind
    size: PassSize
    forward_bytes: int
    backward_bytes: int

    @property
    def num_bytes(self) -> int:
        return max(self.forward_bytes, self.backward_bytes)


@dataclass(frozen=True, kw_only=True)
class ObservedPass:
    """A pass whose peak memory was predicted and then observed."""

    kind: PassKind
    rows: int
    predicted_bytes: int
    observed_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryShortage:
    """A pass ran out of memory and was done again in smaller ones, or recomputed.

    Attributes:
        num_tokens: Tokens of the pass that did not fit.
        budget_before, budget_after: Most tokens of a micro-batch of this kind, then and from now on.
        was_recomputed: Whether the pass that did not fit was recomputed already.
        keep_tokens: Passes of more tokens are recomputed from now on; None: it was split instead.
        message: What the allocator said.
    """

    kind: PassKind
    num_tokens: int
    budget_before: int
    budget_after: int
    message: str
    was_recomputed: bool = False
    keep_tokens: int | None = None
