"""The path of generation: the definition's numbers, and bits of a row that its slot's other rows do not change."""

from __future__ import annotations

import pytest
import torch

from cohort.core.errors import SegmentError
from cohort.kernels.packed_linear import packed_linear
from cohort.kernels.packed_linear.per_slot import per_slot_forward
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.packed_linear.cases import make_case


def table(lengths: list[int], slots: list[int], *, num_rows: int) -> SegmentTable:
    return SegmentTable.from_samples(lengths, slots=slots, num_slots=3, num_rows=num_rows, multiplies_slots=True)


@pytest.mark.parametrize("widths", [(24, 8), (5, 7)])
def test_equals_the_definition(widths: tuple[int, ...]) -> None:
    case = make_case("cpu", lengths=[9, 0, 40], ranks=[3, 4, 5], widths=widths, dtype=torch.float64)
    y = per_slot_forward(
        case.x, frozen=FrozenLinear(case.weight), parts=case.parts, slots=case.slots, segments=case.segments
    )
    torch.testing.assert_close(y, case.reference()["y"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [24, 37, 192])
def test_a_row_has_the_bits_it_has_alone(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    slots = SlotTable(row_starts=(0, 16, 48), ranks=(4, 17, 8), scales=(2.0, 0.3, 1.0), dropouts=(0.0,) * 3)
    a, b = (torch.randn(64, n, generator=generator) for n in (width, 20))
    part, frozen = LoraPart(a_RK=a, b_RN=b), FrozenLinear(torch.randn(20, width, generator=generator))
    rows = torch.randn(96, width, generator=generator)

    def outputs(picked: list[int], counts: list[int]) -> torch.Tensor:
        used = sum(counts)
        num_rows = -(-(used + 16) // 16) * 16
        x = torch.zeros(num_rows, width)
        x[:used] = rows[picked]
        return packed_linear(
            x, frozen=frozen, parts=[part], slots=slots, segments=table(counts, [0, 1, 2], num_rows=num_rows)
        )

    with torch.no_grad():
        together = outputs(list(range(96)), [35, 1, 60])
        for row, slot in ((0, 0), (34, 0), (35, 1), (36, 2), (95, 2)):
            alone = outputs([row], [int(slot == each) for each in range(3)])
            assert torch.equal(alone[0], together[row])


def test_not_finite_rows_of_one_slot_leave_the_others_alone() -> None:
    case = make_case("cpu", lengths=[9, 7], ranks=[3, 4], extra=16)
    x = case.x.clone()

    def run() -> torch.Tensor:
        return per_slot_forward(
            x, frozen=FrozenLinear(case.weight), parts=case.parts, slots=case.slots, segments=case.segments
        )

    clean = run()
    x[case.segments.rows(1)] = torch.nan
    assert torch.equal(run()[:9], clean[:9])


def test_gradients_and_dropout_are_refused() -> None:
    case = make_case("cpu", lengths=[9], ranks=[3])
    segments = SegmentTable.from_samples([9], slots=[0], num_slots=1, num_rows=9, multiplies_slots=True)
    with pytest.raises(SegmentError, match="multiplies_slots"):
        packed_linear(
            case.x[:9], frozen=FrozenLinear(case.weight), parts=case.parts, slots=case.slots, segments=segments
        )


def test_a_row_has_the_bits_of_a_training_pass() -> None:
    """For scales that round nothing: how many rows a slot has decides neither path's bits."""
    generator = torch.Generator().manual_seed(1)
    slots = SlotTable(row_starts=(0, 16, 32), ranks=(4, 16, 8), scales=(2.0, 0.5, 1.0), dropouts=(0.0,) * 3)
    a, b = (torch.randn(48, n, generator=generator) for n in (192, 64))
    part = LoraPart(a_RK=a, b_RN=b, grad_a_RK=torch.zeros_like(a), grad_b_RN=torch.zeros_like(b))
    frozen = FrozenLinear(torch.randn(64, 192, generator=generator))
    for counts in ([1, 0, 3], [2, 40, 1], [200, 4, 6], [0, 0, 1]):
        num_rows = -(-(sum(counts) + 31) // 16) * 16
        x = torch.randn(num_rows, 192, generator=generator)
        with torch.no_grad():
            decoded = packed_linear(
                x, frozen=frozen, parts=[part], slots=slots, segments=table(counts, [0, 1, 2], num_rows=num_rows)
            )
        samples = SegmentTable.from_samples(counts, slots=[0, 1, 2], num_slots=3, num_rows=num_rows)
        trained = packed_linear(x.requires_grad_(), frozen=frozen, parts=[part], slots=slots, segments=samples)
        used = sum(counts)
        assert torch.equal(decoded[:used], trained.detach()[:used])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("width", [6, 9, 10, 11, 16])
def test_a_row_of_a_narrow_part_has_the_bits_of_many_rows(width: int, seed: int) -> None:
    """A product into few rows has the strides of one into many: of rows that are not aligned its bits may follow."""
    generator = torch.Generator().manual_seed(seed)
    slots = SlotTable(row_starts=(0, 16, 32), ranks=(8, 16, 0), scales=(2.0, 1.0, 1.0), dropouts=(0.0,) * 3)
    a = torch.randn(48, 64, generator=generator)
    # the narrow part is some columns of a product of 48
    columns = ((0, width), (width, 48 - width))
    parts = [LoraPart(a_RK=a, b_RN=torch.randn(48, n, generator=generator), column_start=at) for at, n in columns]
    frozen = FrozenLinear(torch.randn(48, 64, generator=generator))
    rows = torch.randn(64, 64, generator=generator)

    def outputs(count: int) -> torch.Tensor:
        segments = table([count, 12], [0, 1], num_rows=64)
        return packed_linear(rows, frozen=frozen, parts=parts, slots=slots, segments=segments)

    with torch.no_grad():
        assert torch.equal(outputs(2)[:2], outputs(20)[:2])


@pytest.mark.parametrize("scale", [2.0, 0.3])
@pytest.mark.parametrize("width", [192, 37])
def test_a_stream_shorter_than_a_window_gives_the_same_bits(width: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    slots = SlotTable(row_starts=(0, 16, 32), ranks=(4, 16, 8), scales=(scale, scale, 1.0), dropouts=(0.0,) * 3)
    a, b = (torch.randn(48, n, generator=generator) for n in (width, 64))
    part, frozen = LoraPart(a_RK=a, b_RN=b), FrozenLinear(torch.randn(64, width, generator=generator))
    rows = torch.randn(40, width, generator=generator)

    def outputs(counts: list[int], *, others: int, filler: int) -> torch.Tensor:
        """Return the rows of two slots, of a frozen sample behind them, and filler."""
        used = sum(counts) + others
        segments = table([*counts, others], [0, 1, -1], num_rows=used + filler)
        return packed_linear(rows[: used + filler], frozen=frozen, parts=[part], slots=slots, segments=segments)[:used]

    with torch.no_grad():
        whole = outputs([3, 5], others=2, filler=30)
        for filler in (0, 1, 2, 6):
            assert torch.equal(outputs([3, 5], others=2, filler=filler), whole)
        for counts in ([1, 0], [3, 0], [3, 1]):
            for others, filler in ((0, 0), (0, 3), (0, 9), (1, 0), (1, 3)):
                found = outputs(counts, others=others, filler=filler)
                count = sum(counts)
                assert torch.equal(found[:count], whole[:count]), (counts, others, filler)
                assert torch.equal(found[count:], frozen.forward(rows[count : count + others]))
