"""What one slot's optimizer step needs to know, and how it reaches the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cohort.core.errors import SegmentError
from cohort.kernels.staging import pinned

__all__ = ["Column", "SlotUpdate", "StagedSlots", "check_slots", "stage_slots"]


@dataclass(frozen=True, kw_only=True)
class SlotUpdate:
    """One slot's settings for one optimizer step.

    Attributes:
        row_start: First rank row of the slot in the bank.
        learning_rate: The rate of this step, schedule applied.
        step: Number of this step, the first is 1 (bias correction).
        weight_decay: Decoupled (Loshchilov and Hutter 2019): weights shrink by ``learning_rate * weight_decay``.
        eps: Added to the root of the corrected second moment.
        max_grad_norm: Clips the slot's gradient to this norm; None leaves it alone.
        scaled_rate: Learning rate of the scaled columns as a multiple of ``learning_rate``.
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
    scaled_rate: float = 1.0

    def __post_init__(self) -> None:
        if self.row_start < 0 or self.rank < 1 or self.step < 1:
            raise SegmentError(f"a slot update needs row_start >= 0, rank >= 1 and step >= 1, got {self}")


class Column:
    """Columns of a staged table: one row per rank row that steps, each with its slot's settings."""

    BANK_ROW = 0  # -1: filler, nothing steps
    SLOT = 1
    FIRST = 2  # table row of the slot's first rank row
    RANK = 3
    DECAY = 4  # learning rate x weight decay
    ONE_MINUS_BETA1 = 5
    BETA2 = 6
    ONE_MINUS_BETA2 = 7
    STEP_SIZE = 8  # learning rate / bias correction of the first moment
    INVERSE_ROOT_CORRECTION2 = 9
    EPS = 10
    MAX_GRAD_NORM = 11  # -1: no clipping
    SCALED_RATE = 12
    COUNT = 13


@dataclass(frozen=True, kw_only=True)
class StagedSlots:
    """The settings of one step on the device, for launches that a CUDA graph records.

    Attributes:
        table_AC: float32 [rank rows that step (or the capacity), Column.COUNT].
    """

    slots: tuple[SlotUpdate, ...]
    table_AC: Tensor


def check_slots(slots: Sequence[SlotUpdate], *, num_rows: int) -> None:
    """Raise SegmentError unless the slots own disjoint rows within ``0:num_rows``."""
    stop, previous = 0, None
    for slot in sorted(slots, key=lambda slot: slot.row_start):
        if slot.row_start < stop:
            raise SegmentError(f"{slot} shares rows with {previous}")
        stop, previous = slot.row_start + slot.rank, slot
        if stop > num_rows:
            raise SegmentError(f"{slot} ends at row {stop} of a bank of {num_rows} rows")


def stage_slots(
    slots: Sequence[SlotUpdate], *, device: torch.device, capacity: int | None = None, into: StagedSlots | None = None
) -> StagedSlots:
    """Copy the settings to ``device`` without waiting for it.

    Args:
        capacity: Rows of the table, for a graph that is replayed with other slots later; default the rows that step.
        into: An earlier result of the same capacity whose memory is used again, so that a recorded graph reads the new
            settings. The copy is ordered on the current stream.

    Raises:
        SegmentError: more rows step than the table holds.
    """
    num_rows = sum(slot.rank for slot in slots)
    capacity = into.table_AC.shape[0] if into is not None else num_rows if capacity is None else capacity
    if num_rows > capacity:
        raise SegmentError(f"{num_rows} rank rows step but the table holds {capacity}")
    host_AC = torch.zeros(capacity, Column.COUNT, dtype=torch.float32)
    host_AC[:, Column.BANK_ROW] = -1.0
    if slots:
        # by numpy: torch repeats rows with all of its threads, and waking those of a GPU's host takes 9 ms a step
        ranks_S = np.array([slot.rank for slot in slots])
        settings_SC = np.array([_settings(slot, index) for index, slot in enumerate(slots)], dtype=np.float64)
        settings_SC[:, Column.FIRST] = ranks_S.cumsum() - ranks_S
        rows_AC = settings_SC.repeat(ranks_S, axis=0)
        rows_AC[:, Column.BANK_ROW] += np.arange(num_rows) - rows_AC[:, Column.FIRST]
        host_AC[:num_rows] = torch.from_numpy(rows_AC)
    if device.type == "cuda":
        host_AC = pinned(host_AC)  # the caching allocator keeps it until the copy has run
    if into is not None:
        into.table_AC.copy_(host_AC, non_blocking=True)
        return StagedSlots(slots=tuple(slots), table_AC=into.table_AC)
    return StagedSlots(slots=tuple(slots), table_AC=host_AC.to(device, non_blocking=True))


def _settings(slot: SlotUpdate, index: int) -> list[float]:
    # differences and corrections are taken here in double precision: 1 - 0.999 in float32 is wrong in the fifth digit
    correction1, correction2 = 1 - slot.beta1**slot.step, 1 - slot.beta2**slot.step
    return [
        slot.row_start,
        index,
        0,
        slot.rank,
        slot.learning_rate * slot.weight_decay,
        1 - slot.beta1,
        slot.beta2,
        1 - slot.beta2,
        slot.learning_rate / correction1,
        1 / math.sqrt(correction2),
        slot.eps,
        -1.0 if slot.max_grad_norm is None else slot.max_grad_norm,
        slot.scaled_rate,
    ]
