"""Slots taken together have the bits of slots one by one, and the stretches are those whose slots allow it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cohort.kernels.packed_linear import per_sample
from cohort.kernels.packed_linear.per_sample import per_sample_backward, per_sample_forward
from cohort.kernels.packed_linear.slot_stretches import Stretch, stretches
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

K, WIDTHS, STRIDE = 48, (32, 16), 160


def drawn_pack(seed: int) -> tuple[SegmentTable, SlotTable]:
    """Slots of few and of many ranks, some empty, some of a row or two, some with a scale that rounds or dropout."""
    draw = random.Random(seed)
    ranks = [draw.choice([4, 4, 4, 16]) for _ in range(6)]
    starts = [sum(ranks[:slot]) + 4 * slot for slot in range(6)]
    lengths, slots = [], []
    for slot in range(6):
        for _ in range(draw.choice([0, 1, 2, 5])):
            lengths.append(draw.choice([1, 2, 7, 33, 140]))
            slots.append(slot)
    num_rows = -(-(sum(lengths) + 16) // 16) * 16
    segments = SegmentTable.from_samples(lengths, slots=slots, num_slots=6, num_rows=num_rows)
    scales = tuple(draw.choice([2.0, 2.0, 0.5, 1.3]) for _ in ranks)
    dropouts = tuple(draw.choice([0.0, 0.0, 0.0, 0.2]) for _ in ranks)
    return segments, SlotTable(row_starts=tuple(starts), ranks=tuple(ranks), scales=scales, dropouts=dropouts)


def passed(segments: SegmentTable, slots: SlotTable, *, seed: int, keys: Tensor | None) -> list[Tensor]:
    """Return y, dx and all sinks of a pass forward and backward."""
    generator = torch.Generator().manual_seed(seed)
    bank = torch.randn(slots.end_of_rank_rows, STRIDE, generator=generator)
    sinks: list[Tensor] = []
    parts, column, place = [], 0, 0
    for index, width in enumerate(WIDTHS):
        a, b = bank[:, place : place + K], bank[:, place + K : place + K + width]
        grads = torch.zeros_like(a), torch.zeros_like(b)
        sinks += grads
        parts.append(
            LoraPart(a_RK=a, b_RN=b, grad_a_RK=grads[0], grad_b_RN=grads[1], column_start=column, module_key=index)
        )
        column, place = column + width, place + K + width
    frozen = FrozenLinear(torch.randn(column, K, generator=generator))
    x, dy = (torch.randn(segments.num_rows, width, generator=generator) for width in (K, column))
    y, kept = per_sample_forward(x, frozen=frozen, parts=parts, slots=slots, segments=segments, row_keys_T=keys)
    dx = per_sample_backward(
        dy, x_TK=x, kept=kept, frozen=frozen, parts=parts, slots=slots, segments=segments, row_keys_T=keys
    )
    assert dx is not None
    return [y, dx, *sinks]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("drops", [False, True])
def test_together_or_one_by_one_all_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch, seed: int, *, drops: bool
) -> None:
    segments, slots = drawn_pack(seed)
    keys = torch.arange(segments.num_rows) * 977 if drops else None
    together = passed(segments, slots, seed=seed, keys=keys)
    monkeypatch.setattr(per_sample, "stretches", lambda segments, slots, *, drops: segments.slot_samples)
    apart = passed(segments, slots, seed=seed, keys=keys)
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


def test_neighbours_of_one_rank_are_taken_together_where_nothing_rounds_or_drops() -> None:
    segments = SegmentTable.from_samples([300, 5, 9, 9, 9, 9], slots=[0, 1, 1, 2, 3, 5], num_slots=6, num_rows=352)
    plain = SlotTable(
        row_starts=(0, 4, 8, 12, 28, 44), ranks=(4, 4, 4, 16, 16, 16), scales=(2.0,) * 6, dropouts=(0.0,) * 6
    )
    first, second = stretches(segments, plain, drops=True)
    assert isinstance(first, Stretch)
    assert isinstance(second, Stretch)
    # 300 rows are three runs of 100, and slot 4 has no rows
    assert (first.runs, first.slots_of_runs, first.lengths) == ([100, 100, 100, 14, 9], [0, 0, 0, 1, 2], [300, 5, 9, 9])
    assert (second.rank, second.rows, second.slots_of_samples) == (16, slice(323, 341), [0, 1])
    rounding = replace(plain, scales=(2.0, 3.0, *(2.0,) * 4))
    for other in (rounding, replace(plain, dropouts=(0.0, 0.1, *(0.0,) * 4))):
        kinds = [isinstance(found, Stretch) for found in stretches(segments, other, drops=True)]
        assert kinds == [True, False, True, True]
    undropped = stretches(segments, replace(plain, dropouts=(0.1,) * 6), drops=False)
    assert [isinstance(found, Stretch) for found in undropped] == [True, True]
