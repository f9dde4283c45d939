"""One slot's settings: what is refused, and the table that the device reads."""

from __future__ import annotations

import pytest
import torch

from cohort.core.errors import SegmentError
from cohort.kernels.adamw.slot_update import Column, SlotUpdate, check_slots, stage_slots


def update(row_start: int = 0, rank: int = 2, step: int = 1) -> SlotUpdate:
    return SlotUpdate(row_start=row_start, rank=rank, learning_rate=1e-2, step=step, weight_decay=0.5)


@pytest.mark.parametrize("wrong", [{"row_start": -1}, {"rank": 0}, {"step": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SegmentError, match="row_start >= 0, rank >= 1 and step >= 1"):
        update(**wrong)


def test_slots_must_not_share_rows_or_leave_the_bank() -> None:
    check_slots([update(0), update(2)], num_rows=4)
    with pytest.raises(SegmentError):
        check_slots([update(0), update(1)], num_rows=4)
    with pytest.raises(SegmentError):
        check_slots([update(3)], num_rows=4)


def test_each_rank_row_has_its_slot_s_settings() -> None:
    table = stage_slots([update(4, rank=3), update(0, rank=1, step=9)], device=torch.device("cpu")).table_AC
    rows = table[:4].tolist()
    assert [row[Column.BANK_ROW] for row in rows] == [4, 5, 6, 0]
    assert [row[Column.RANK] for row in rows] == [3, 3, 3, 1]
    assert all(row[Column.DECAY] == pytest.approx(5e-3) for row in rows)
