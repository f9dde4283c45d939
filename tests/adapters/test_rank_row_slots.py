"""Which rank rows a slot has: first fit, gaps closed only where they must be, and one table until something changes."""

from __future__ import annotations

import pytest

from cohort.adapters.rank_row_slots import BankFullError, RankRowSlots, RowsMove, aligned_rank
from cohort.adapters.spec import AdapterSpec


def spec(r: int) -> AdapterSpec:
    return AdapterSpec(r=r, lora_alpha=2 * r)


def test_the_first_run_that_is_long_enough() -> None:
    slots = RankRowSlots(num_slots=4, num_rank_rows=60)
    assert slots.num_rank_rows == 64
    for r in (16, 20, 3):
        assert slots.moves_for(spec(r)) == ()
        slots.take(spec(r))
    assert [slots.start(slot) for slot in slots.occupied] == [0, 16, 48]
    slots.free(1)
    assert slots.take(spec(5)) == 1
    assert (slots.state_rows(1), slots.padded_rows(1)) == (slice(16, 21), slice(16, 32))


def test_gaps_are_closed_from_below() -> None:
    slots = RankRowSlots(num_slots=3, num_rank_rows=64)
    for r in (16, 32, 16):
        slots.take(spec(r))
    slots.free(0)
    before = slots.table()
    slots.free(2)
    assert slots.moves_for(spec(32)) == [RowsMove(32 - 16, 0, 32)]
    assert slots.take(spec(32)) == 0
    assert [slots.start(slot) for slot in slots.occupied] == [32, 0]
    assert slots.table() is not before
    assert slots.table() is slots.table()


def test_what_does_not_fit_is_refused_with_what_is_in_use() -> None:
    slots = RankRowSlots(num_slots=2, num_rank_rows=32)
    slots.take(spec(17))
    assert not slots.fits(spec(1))
    with pytest.raises(BankFullError, match="rank 1: 1 of 2 slots and 17 of 32 rank rows"):
        slots.moves_for(spec(1))
    assert [aligned_rank(r) for r in (1, 16, 17)] == [16, 16, 32]
