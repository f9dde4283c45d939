"""Slots whose samples have the same lengths are multiplied in one call, and have the bits that they have one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cohort.kernels.packed_linear import per_sample
from cohort.kernels.packed_linear.even_slots import EvenSlots, even_slots
from cohort.kernels.packed_linear.slot_stretches import Stretch, stretches
from cohort.kernels.packed_linear.tables import SlotTable
from cohort.kernels.segments import SegmentTable
from tests.kernels.packed_linear.test_slot_stretches import passed

SAMPLES = {"two": [32, 32], "one": [20], "runs": [64, 64, 33], "uneven": [7, 1, 90]}


def pack_of(lengths: list[int], *, count: int, rank: int, step: int) -> tuple[SegmentTable, SlotTable]:
    segments = SegmentTable.from_samples(
        lengths * count,
        slots=[slot for slot in range(count) for _ in lengths],
        num_slots=count,
        num_rows=-(-(sum(lengths) * count + 5) // 16) * 16,
    )
    starts = tuple(step * slot for slot in range(count))
    table = SlotTable(row_starts=starts, ranks=(rank,) * count, scales=(2.0,) * count, dropouts=(0.0,) * count)
    return segments, table


def even_of(segments: SegmentTable, slots: SlotTable) -> EvenSlots | None:
    (stretch,) = stretches(segments, slots, drops=False)
    assert isinstance(stretch, Stretch)
    return even_slots(stretch)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("lengths", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize(("rank", "step"), [(4, 4), (16, 16), (12, 16)])
def test_together_or_one_by_one_all_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch, threads: int, lengths: list[int], rank: int, step: int
) -> None:
    segments, slots = pack_of(lengths, count=4, rank=rank, step=step)
    assert even_of(segments, slots) is not None, threads
    taken: list[bool] = []
    asked = EvenSlots.have_own_bits

    def counted(self: EvenSlots, *arguments: object, **keywords: object) -> bool:
        taken.append(asked(self, *arguments, **keywords))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(EvenSlots, "have_own_bits", counted)
    together = passed(segments, slots, seed=3, keys=None)
    if not any(taken):
        pytest.skip(f"this machine's BLAS has other bits for one of {lengths} rows in a batch")
    monkeypatch.setattr(per_sample, "even_slots", lambda stretch: None)
    segments.derived.clear()
    apart = passed(segments, slots, seed=3, keys=None)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


def test_slots_of_other_samples_scales_or_places_are_taken_one_by_one() -> None:
    segments, slots = pack_of([32, 32], count=4, rank=4, step=8)
    assert even_of(segments, slots) is not None
    assert even_of(*pack_of([32, 32], count=2, rank=4, step=8)) is None
    assert even_of(*pack_of([200], count=4, rank=4, step=8)) is None
    assert even_of(segments, replace(slots, scales=(2.0, 2.0, 4.0, 2.0))) is None
    assert even_of(segments, replace(slots, row_starts=(0, 8, 16, 32))) is None
    assert even_of(segments, replace(slots, row_starts=(24, 16, 8, 0))) is None
    other = SegmentTable.from_samples([32, 32, 64, 32, 32], slots=[0, 0, 1, 2, 2], num_slots=4, num_rows=256)
    assert even_of(other, slots) is None


def test_a_blas_with_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    segments, slots = pack_of([32, 32], count=4, rank=4, step=4)
    expected = passed(segments, slots, seed=1, keys=None)

    def others(self: EvenSlots, *arguments: object, **keywords: object) -> bool:
        return False

    def never(*arguments: Tensor, **keywords: object) -> Tensor:
        raise AssertionError("a batch whose bits are not the slots' own")

    monkeypatch.setattr(EvenSlots, "have_own_bits", others)
    monkeypatch.setattr(torch, "bmm", never)
    found = passed(segments, slots, seed=1, keys=None)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
