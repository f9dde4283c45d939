"""What one slot's optimizer step needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.core.errors import SegmentError

__all__ = ["SlotUpdate", "check_slots"]


@dataclass(frozen=True, kw_only=True)
class SlotUpdate:
    """One slot's settings for one optimizer step.

    Attributes:
        row_start: First rank row of the slot in the bank.
        rank: Rank rows of the slot.
        learning_rate: Of this step, schedule applied.
        weight_decay: Decoupled (Loshchilov and Hutter 2019): weights shrink by ``learning_rate * weight_decay``.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        eps: Added to the root of the corrected second moment.
        step: Number of this step, the first is 1 (bias correction).
        max_grad_norm: Clips the slot's gradient to this norm; None leaves it alone.
    """

    row_start: int
    rank: int
    learning_rate: float
    step: int
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        if self.row_start < 0 or self.rank < 1 or self.step < 1:
            raise SegmentError(f"a slot update needs row_start >= 0, rank >= 1 and step >= 1, got {self}")


def check_slots(slots: Sequence[SlotUpdate], *, num_rows: int) -> None:
    """Raise SegmentError unless the slots own disjoint rows within ``0:num_rows``."""
    stop, previous = 0, None
    for slot in sorted(slots, key=lambda slot: slot.row_start):
        if slot.row_start < stop:
            raise SegmentError(f"{slot} shares rows with {previous}")
        stop, previous = slot.row_start + slot.rank, slot
        if stop > num_rows:
            raise SegmentError(f"{slot} ends at row {stop} of a bank of {num_rows} rows")
