"""What every slot is, column by column: for kernels that ask by slot, where tables of tiles ask by rows.

Shapes:  Z slots and none
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from cohort.kernels.packed_linear.tables import SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["SLOT_COLUMNS", "slot_columns"]

SLOT_COLUMNS = 4
"""Numbers of each slot, behind the spans."""


def slot_columns(
    segments: SegmentTable,
    slots: SlotTable,
    *,
    fresh_slots: Collection[int] = (),
    num_samples: int | None = None,
) -> NDArray[np.int32]:
    """Return int32 columns, one behind the other; the last slot is none, whose numbers are zeros.

    The row after each span's last one; the first span of each slot, and the number of all, [Z + 1]; first rank row and
    rank of each slot, together; whether its gradients are written over what is there, where it has rows; its scale, as
    float32 bits.

    Args:
        num_samples: Room for so many samples, each of which is a span then; None: a slot's rows are one span. Rows of
            no slot are the last span, which has no end of its own.
    """
    count = slots.num_slots + 1
    if num_samples is None:
        stops = np.array(segments.offsets[1:], dtype=np.int32)
        first_spans = np.arange(count + 1, dtype=np.int32)
    else:
        own = [span for span in segments.samples if span.slot >= 0]
        stops = np.full(num_samples, segments.num_adapter_rows, dtype=np.int32)
        stops[: len(own)] = [span.stop for span in own]
        # spans that no sample fills are the last slot's, without rows
        first_spans = np.searchsorted([span.slot for span in own], np.arange(count + 1)).astype(np.int32)
        first_spans[-2:] = num_samples, num_samples + 1
    fresh, scales = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
    ranks = np.zeros((count, 2), dtype=np.int32)
    ranks[:-1, 0], ranks[:-1, 1] = slots.row_starts, slots.ranks
    has_rows = np.diff(segments.offsets) > 0
    fresh[:-1] = [slot in fresh_slots and bool(has_rows[slot]) for slot in range(slots.num_slots)]
    scales[:-1] = np.array(slots.scales, dtype=np.float32).view(np.int32)
    return np.concatenate([stops, first_spans, ranks.reshape(-1), fresh, scales])
