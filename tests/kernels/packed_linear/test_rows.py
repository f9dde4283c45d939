"""Row by row: the definition's numbers for siblings, ragged ranks, free slots and rows of no adapter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank, aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import SegmentError
from cohort.kernels.backend import Backend
from cohort.kernels.deferred_lora_term import joined
from cohort.kernels.packed_linear import packed_linear, product_and_term
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.packed_linear.tables import LoraPart
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def bank_of(
    ranks: list[int], *, widths: tuple[int, ...], width: int, dtype: torch.dtype = torch.float32
) -> AdapterBank:
    layout = AdapterLayout({f"m.{index}": (width, n) for index, n in enumerate(widths)})
    room = sum(map(aligned_rank, ranks)) + 16
    bank = AdapterBank(layout, num_slots=len(ranks) + 1, num_rank_rows=room, device=DEVICE, dtype=dtype, trains=False)
    for index, r in enumerate(ranks):
        weights = torch.randn(r, layout.width, generator=torch.Generator().manual_seed(index))
        bank.insert(AdapterSpec(r=r, lora_alpha=2 * r), AdapterState(weights=weights))
    return bank


def parts_of(bank: AdapterBank, widths: tuple[int, ...]) -> list[LoraPart]:
    starts = [sum(widths[:index]) for index in range(len(widths))]
    return [replace(bank._parts[f"m.{index}"], column_start=start) for index, start in enumerate(starts)]


@pytest.mark.parametrize(
    ("ranks", "counts", "widths", "width"),
    [
        ([4, 17, 8], [1, 2, 3], (40,), 24),
        ([16], [5], (300, 20, 7), 1100),
        ([33, 1], [0, 2], (12, 270), 37),
    ],
)
@torch.no_grad()
def test_equals_the_definition(ranks: list[int], counts: list[int], widths: tuple[int, ...], width: int) -> None:
    bank = bank_of(ranks, widths=widths, width=width)
    used = sum(counts)
    segments = SegmentTable.from_samples(
        counts, slots=list(range(len(ranks))), num_slots=bank.num_slots, num_rows=used + 3, multiplies_slots=True
    )
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(used + 3, width, generator=generator).to(DEVICE)
    frozen = FrozenLinear(torch.randn(sum(widths), width, generator=generator).to(DEVICE))
    parts, slots = parts_of(bank, widths), bank.slot_table()
    tables = RowTables(segments, slots, device=DEVICE)
    found = packed_linear(
        x, frozen=frozen, parts=parts, slots=slots, segments=segments, tables=tables, backend=Backend.TRITON
    )
    expected = packed_linear(x, frozen=frozen, parts=parts, slots=slots, segments=segments, backend=Backend.REFERENCE)
    # sums of up to 1100 products in another order; on a CPU rows of no sample may hold anything
    torch.testing.assert_close(found[:used], expected[:used], rtol=1e-4, atol=1e-3)
    assert torch.equal(found[used:], frozen.forward(x)[used:])
    apart = product_and_term(x, frozen=frozen, parts=parts, slots=slots, segments=segments, tables=tables)
    assert apart is not None
    assert torch.equal(joined(apart), found)
    assert not apart.term_TN[used:].any()
    # columns that no adapter owns would need zeros from elsewhere
    wider = FrozenLinear(torch.randn(sum(widths) + 1, width))
    assert product_and_term(x, frozen=wider, parts=parts, slots=slots, segments=segments, tables=tables) is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("ranks", "rows"), [((4, 16), 1), ((4, 16, 8, 12), 64), ((4, 48, 130), 200), ((512, 16, 256), 33)]
)
@pytest.mark.parametrize("widths", [(4096,), (2048, 512, 512)])
@torch.no_grad()
def test_up_to_64_adapters_of_any_rank_against_float64(
    ranks: tuple[int, ...], rows: int, widths: tuple[int, ...]
) -> None:
    count = min(rows, 64)
    bank = bank_of(
        [ranks[index % len(ranks)] for index in range(count)], widths=widths, width=4096, dtype=torch.bfloat16
    )
    bank.weights_RD.mul_(0.1)
    counts = [rows // count + (index < rows % count) for index in range(count)]
    segments = SegmentTable.from_samples(
        counts, slots=list(range(count)), num_slots=bank.num_slots, num_rows=rows + 5, multiplies_slots=True
    )
    x = torch.randn(rows + 5, 4096, device="cuda", dtype=torch.bfloat16)
    frozen = FrozenLinear(torch.zeros(sum(widths), 4096, device="cuda", dtype=torch.bfloat16))
    parts, slots = parts_of(bank, widths), bank.slot_table()
    tables = RowTables(segments, slots, device="cuda")
    apart = product_and_term(x, frozen=frozen, parts=parts, slots=slots, segments=segments, tables=tables)
    assert apart is not None
    for slot in range(count):
        own, rank_rows = segments.rows(slot), slots.rank_rows(slot)
        for part in parts:
            a, b = part.a_RK[rank_rows].double(), part.b_RN[rank_rows].double()
            expected = slots.scales[slot] * (x[own].double() @ a.T) @ b
            error = (apart.term_TN[own, part.columns].double() - expected).norm()
            # operands are exact, sums are float32: of 4096 and of up to 512 products
            assert error <= 1e-5 * expected.norm()
    assert not apart.term_TN[rows:].any()


@torch.no_grad()
def test_neighbours_change_no_bit_of_a_term() -> None:
    bank = bank_of([4, 8], widths=(20,), width=24)
    x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    frozen = FrozenLinear(torch.zeros(20, 24, device=DEVICE))

    def run(x: torch.Tensor, counts: list[int]) -> torch.Tensor:
        segments = SegmentTable.from_samples(counts, slots=[0, 1], num_slots=3, num_rows=len(x), multiplies_slots=True)
        slots = bank.slot_table()
        return packed_linear(
            x,
            frozen=frozen,
            parts=parts_of(bank, (20,)),
            slots=slots,
            segments=segments,
            tables=RowTables(segments, slots, device=DEVICE),
            backend=Backend.TRITON,
        )

    assert torch.equal(run(x, [2, 2])[3:], run(x[3:], [0, 1]))


def test_an_update_describes_another_stream_in_the_same_place() -> None:
    bank = bank_of([4, 8], widths=(20,), width=24)
    slots = bank.slot_table()

    def segments(counts: list[int], rows: int = 4) -> SegmentTable:
        return SegmentTable.from_samples(counts, slots=[0, 1], num_slots=3, num_rows=rows, multiplies_slots=True)

    tables = RowTables(segments([1, 2]), slots, device=DEVICE)
    place = tables.rows_T4.data_ptr()
    tables.update(segments([3, 0]), slots)
    assert tables.rows_T4.data_ptr() == place
    assert tables.rows_T4[:, 1].tolist() == [4, 4, 4, 0]
    with pytest.raises(SegmentError, match="build new tables"):
        tables.update(segments([3, 0], 5), slots)


@torch.no_grad()
def test_ranks_that_exchange_between_both_kernels_give_the_whole_term() -> None:
    kernels = pytest.importorskip("cohort.kernels.packed_linear.rows.triton")
    generator = torch.Generator().manual_seed(2)
    x, a, b = (torch.randn(shape, generator=generator) for shape in ((3, 24), (8, 24), (8, 20)))
    terms, banks = [], []
    for rank in range(2):
        # a rank's half of A's rows, and all of B's for its half of the outputs
        weights = torch.zeros(8, 24 + 10)
        weights[:4, :24], weights[:, 24:] = a[4 * rank : 4 * rank + 4], b[:, 10 * rank : 10 * rank + 10]
        bank = AdapterBank(AdapterLayout({"m.0": (24, 10)}), num_slots=1, num_rank_rows=16, device=DEVICE, trains=False)
        bank.insert(AdapterSpec(r=8, lora_alpha=16), AdapterState(weights=weights))
        segments = SegmentTable.from_samples([2], slots=[0], num_slots=1, num_rows=3, multiplies_slots=True)
        tables = RowTables(segments, bank.slot_table(), device=DEVICE)
        terms += kernels.start_row_terms(x.to(DEVICE), parts=parts_of(bank, (10,)), tables=tables, shares=2)
        banks.append(bank)
    found: list[torch.Tensor] = []

    def listen(z: torch.Tensor) -> torch.Tensor:
        found.append(z)
        return z

    for each in terms:
        each.exchange(listen)
    whole = torch.nn.functional.pad(torch.cat([z[:, :, :4] for z in found], dim=2), (0, 8))
    expected = 2.0 * (x[:2] @ a.T) @ b
    for rank, each in enumerate(terms):
        each.exchange(lambda _: whole)
        y = torch.zeros(3, 10, device=DEVICE)
        each.add_to(y)
        # sums of 24 and 8 products in another order
        torch.testing.assert_close(y[:2].cpu(), expected[:, 10 * rank : 10 * rank + 10], rtol=1e-4, atol=1e-4)
        assert not y[2].any()
