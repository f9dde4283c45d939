"""Terms of several slots in batched products: the bits of slots one by one, and factors as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from cohort.kernels.packed_linear import packed_linear, per_slot, stacked_terms
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

WIDTHS = (192, 64, 64)
INNER = 192
SLOTS = 4


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


class Setup:
    """Four slots over q, k and v."""

    def __init__(
        self, *, ranks: tuple[int, ...] = (8,) * SLOTS, scales: tuple[float, ...] = (2.0, 0.5, 1.0, 2.0)
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parts = [
            LoraPart(
                a_RK=torch.randn(64, INNER, generator=generator),
                b_RN=torch.randn(64, width, generator=generator),
                column_start=sum(WIDTHS[:index]),
            )
            for index, width in enumerate(WIDTHS)
        ]
        self.slots = SlotTable(row_starts=(0, 16, 32, 48), ranks=ranks, scales=scales, dropouts=(0.0,) * SLOTS)
        self.frozen = FrozenLinear(torch.randn(sum(WIDTHS), INNER, generator=generator))
        self.rows = torch.randn(160, INNER, generator=generator)

    def table(self, counts: Sequence[int], *, others: int = 0, filler: int = 0) -> SegmentTable:
        num_rows = sum(counts) + others + filler
        slots = [*range(SLOTS), -1]
        return SegmentTable.from_samples(
            [*counts, others], slots=slots, num_slots=SLOTS, num_rows=num_rows, multiplies_slots=True
        )

    def output(self, segments: SegmentTable) -> Tensor:
        with torch.no_grad():
            y = packed_linear(
                self.rows[: segments.num_rows],
                frozen=self.frozen,
                parts=self.parts,
                slots=self.slots,
                segments=segments,
            )
        return y[: segments.num_used]

    @property
    def is_stacked(self) -> bool:
        last = self.parts[0].stacked.get("last")
        return last is not None and last.factors is not None


CASES = [
    ((4, 4, 4, 4), 0, 0),
    ((1, 1, 1, 1), 0, 0),
    ((2, 2, 0, 2), 1, 1),
    ((1, 2, 3, 1), 0, 1),
    ((0, 1, 0, 1), 2, 0),
    ((8, 5, 7, 8), 0, 4),
    ((32, 32, 32, 32), 0, 0),
    ((33, 2, 2, 2), 0, 1),
    ((30, 1, 1, 1), 0, 3),
]


@pytest.mark.parametrize("threads", [1, 2])
def test_terms_have_the_bits_of_slots_one_by_one(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    torch.set_num_threads(threads)
    for counts, others, filler in CASES:
        setup = Setup()
        segments = setup.table(counts, others=others, filler=filler)
        # the second pass stacks what the first has asked for
        first, second, third = (setup.output(segments) for _ in range(3))
        assert torch.equal(first, second), counts
        assert torch.equal(first, third), counts
        with monkeypatch.context() as patch:
            patch.setattr(per_slot, "stamp_of", lambda _: None)
            assert torch.equal(first, setup.output(segments)), counts


def test_what_is_stacked_follows_what_is_written_and_which_slots_there_are() -> None:
    setup = Setup()
    segments = setup.table((4, 4, 4, 4))
    for _ in range(2):
        setup.output(segments)
    if not setup.is_stacked:
        pytest.skip("this machine's BLAS gives arranged factors other bits")
    kept = setup.parts[0].stacked["last"]
    setup.output(segments)
    assert setup.parts[0].stacked["last"] is kept
    setup.parts[1].a_RK[20] += 1.0
    changed = [setup.output(segments) for _ in range(3)]
    assert setup.is_stacked
    fresh = Setup()
    fresh.parts[1].a_RK[20] += 1.0
    expected = fresh.output(segments)
    assert all(torch.equal(own, expected) for own in changed)
    # slots that change with each pass are not stacked
    for counts in ((4, 4, 0, 4), (4, 4, 4, 0), (4, 0, 4, 4)):
        setup.output(setup.table(counts))
        assert not setup.is_stacked


@pytest.mark.parametrize(
    "settings", [{"ranks": (8, 16, 8, 8)}, {"ranks": (8, 0, 8, 8)}, {"scales": (2.0, 0.3, 1.0, 1.0)}]
)
def test_slots_of_several_ranks_or_other_scales_are_taken_one_by_one(settings: dict[str, tuple[float, ...]]) -> None:
    setup = Setup(**settings)  # type: ignore[arg-type]
    segments = setup.table((2, 2, 2, 2))
    found = [setup.output(segments) for _ in range(3)]
    assert not setup.is_stacked
    assert torch.equal(found[0], found[2])


def test_a_batch_with_other_bits_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup()
    segments = setup.table((4, 4, 4, 4))
    expected = setup.output(segments)
    monkeypatch.setattr(stacked_terms, "_agrees", lambda *_: False)
    assert all(torch.equal(setup.output(segments), expected) for _ in range(3))


def test_a_slot_that_is_not_finite_leaves_the_others_alone() -> None:
    setup = Setup()
    segments = setup.table((1, 4, 2, 4), filler=1)
    expected = setup.output(segments)
    setup.parts[0].a_RK[16:24] = torch.nan
    for _ in range(3):
        found = setup.output(segments)
        assert torch.equal(found[:1], expected[:1])
        assert torch.equal(found[5:], expected[5:])
        assert not found[1:5].isfinite().all()
