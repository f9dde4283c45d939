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

SLOT_COLUMNS = 5
"""Numbers of each slot."""


def slot_columns(segments: SegmentTable, slots: SlotTable, *, fresh_slots: Collection[int] = ()) -> NDArray[np.int32]:
    """Return int32 [5 Z]; the last slot is none, whose numbers are zeros.

    One column behind the other: the row after each slot's last one; first rank row and rank of each, together; whether
    its gradients are written over what is there, where it has rows; its scale, as float32 bits.
    """
    count = slots.num_slots + 1
    stops, fresh, scales = (np.zeros(count, dtype=np.int32) for _ in range(3))
    ranks = np.zeros((count, 2), dtype=np.int32)
    stops[:-1] = segments.offsets[1:]
    ranks[:-1, 0], ranks[:-1, 1] = slots.row_starts, slots.ranks
    has_rows = np.diff(segments.offsets) > 0
    fresh[:-1] = [slot in fresh_slots and bool(has_rows[slot]) for slot in range(slots.num_slots)]
    scales[:-1] = np.array(slots.scales, dtype=np.float32).view(np.int32)
    return np.concatenate([stops, ranks.reshape(-1), fresh, scales])
