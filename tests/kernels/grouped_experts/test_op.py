"""The kernels against plain torch: ragged groups, experts and slots without rows, pairs without an expert."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cohort.kernels.backend import Backend, implementation
from cohort.kernels.grouped_experts import (
    ExpertRows,
    GroupedFactors,
    SlotRows,
    adapted_product,
    combine_rows,
    spread_rows,
)
from cohort.kernels.packed_linear import LaunchTables, SlotTable
from cohort.kernels.packed_linear.launch.slot_columns import slot_columns
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.segments import SegmentTable

E, J, T, D, N = 5, 2, 75, 24, 40
# the last rows are of no adapter
STOPS = (33, 34, 70)


def drawn(*shape: int, seed: int, device: str) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def sorted_rows(device: str, *, ranks: tuple[int, ...], fresh: tuple[bool, ...] = (False, True, False)) -> ExpertRows:
    scores = drawn(T, E, seed=1, device="cpu")
    # an expert that no token chooses, and tokens with one expert less
    scores[:, 3] = -100.0
    index_TJ = scores.topk(J, dim=1).indices
    index_TJ[::7, 1] = E
    fresh_slots = [slot for slot, is_fresh in enumerate(fresh) if is_fresh]
    columns = slot_columns(segments(), slot_table(ranks), fresh_slots=fresh_slots)
    on_device = torch.from_numpy(columns).to(device)
    slots = SlotRows.of_columns(on_device, num_slots=3, num_rows=T, max_rank=max(ranks))
    return ExpertRows.of(index_TJ.to(device), num_experts=E, slots=slots)


def slot_table(ranks: tuple[int, ...]) -> SlotTable:
    return SlotTable(row_starts=(0, 16, 32), ranks=ranks, scales=(2.0, 0.5, 1.0), dropouts=(0.0,) * 3)


def segments() -> SegmentTable:
    lengths = [stop - start for start, stop in zip((0, *STOPS), STOPS, strict=False)]
    return SegmentTable.from_samples(lengths, slots=range(3), num_slots=3, num_rows=T)


def factors_of(device: str, *, num_rank_rows: int, sink: float) -> GroupedFactors:
    # experts one behind the other in a wide row, as in a bank
    bank = drawn(num_rank_rows, 3 + E * (D + N), seed=3, device=device) / 5
    sinks = torch.full_like(bank, sink)

    def columns(own: Tensor, first: int, width: int) -> Tensor:
        return own.as_strided((num_rank_rows, E, width), (own.stride(0), D + N, 1), 3 + first)

    return GroupedFactors(
        a_REK=columns(bank, 0, D),
        b_REN=columns(bank, D, N),
        grad_a_REK=columns(sinks, 0, D),
        grad_b_REN=columns(sinks, D, N),
    )


@pytest.mark.parametrize("ranks", [(3, 16, 8), (16, 1, 90)], ids=str)
def test_a_product_with_terms_and_its_gradients_are_the_reference(triton_device: str, ranks: tuple[int, ...]) -> None:
    rows = sorted_rows(triton_device, ranks=ranks)
    weight_ENK = drawn(E, N, D, seed=2, device=triton_device) / 5
    found = []
    for backend in (Backend.REFERENCE, Backend.TRITON):
        # what another step left in a sink that is written over is never read; here it is added to where it is not
        factors = factors_of(triton_device, num_rank_rows=128, sink=0.25)
        x_TD = drawn(T, D, seed=4, device=triton_device).requires_grad_()
        weights_TJ = drawn(T, J, seed=5, device=triton_device).requires_grad_()
        y_SN = adapted_product(
            spread_rows(x_TD, rows, backend=backend), weight_ENK, rows, factors=factors, backend=backend
        )
        y_TN = combine_rows(y_SN, weights_TJ, rows, backend=backend)
        y_TN.backward(drawn(T, N, seed=6, device=triton_device))
        found.append((y_TN.detach(), x_TD.grad, weights_TJ.grad, factors.grad_a_REK, factors.grad_b_REN))
    for expected, own in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, atol=2e-5, rtol=2e-5)


def test_a_slot_that_is_not_finite_changes_no_other_row(triton_device: str) -> None:
    rows = sorted_rows(triton_device, ranks=(3, 16, 8))
    weight_ENK, x_TD = drawn(E, N, D, seed=2, device=triton_device), drawn(T, D, seed=4, device=triton_device)
    plain = factors_of(triton_device, num_rank_rows=48, sink=0.0)
    broken = replace(plain, a_REK=plain.a_REK.clone())
    broken.a_REK[16:32] = float("nan")
    weights_TJ = torch.ones(T, J, device=triton_device)
    both = [
        combine_rows(
            adapted_product(
                spread_rows(x_TD, rows, backend=Backend.TRITON), weight_ENK, rows, factors=own, backend=Backend.TRITON
            ),
            weights_TJ,
            rows,
            backend=Backend.TRITON,
        )
        for own in (plain, broken)
    ]
    others = [token for token in range(T) if token != STOPS[0]]
    assert torch.equal(both[0][others], both[1][others])
    assert bool(both[1][STOPS[0]].isnan().all())


@pytest.mark.parametrize(("num_experts", "num_slots"), [(5, 0), (128, 3), (3000, 16)], ids=str)
def test_pairs_stand_by_expert_then_slot_then_token_however_many_there_are(num_experts: int, num_slots: int) -> None:
    # 3,000 experts of 17 slots are more than 16 bits count
    scores = drawn(T, num_experts, seed=1, device="cpu")
    index_TJ = scores.topk(J, dim=1).indices
    # none, by any number that is no expert's
    index_TJ[::7, 1] = num_experts + 70000
    stops = range(T // 2 - num_slots, T // 2)
    columns = torch.tensor([*stops, *range(num_slots + 2), *[0] * (4 * num_slots + 4)], dtype=torch.int32)
    of_rows = SlotRows.of_columns(columns, num_slots=num_slots, num_rows=T, max_rank=4) if num_slots else None
    rows = ExpertRows.of(index_TJ, num_experts=num_experts, slots=of_rows)
    slots = [sum(token >= stop for stop in stops) for token in range(T)]
    pairs = [(min(e, num_experts), slots[token], token) for token, own in enumerate(index_TJ.tolist()) for e in own]
    expected = sorted(pairs)
    assert rows.token_S.tolist() == [token for _, _, token in expected]
    assert rows.expert_S.tolist() == [expert for expert, _, _ in expected]
    assert rows.ends_E.tolist() == [sum(expert <= e for expert, _, _ in pairs) for e in range(num_experts)]
    assert [pairs[place] for place in torch.argsort(rows.place_TJ.reshape(-1)).tolist()] == expected


@pytest.mark.parametrize("exact", [False, True])
def test_a_product_alone_is_the_reference_in_both_directions(triton_device: str, exact: bool) -> None:
    rows = sorted_rows(triton_device, ranks=(3, 16, 8))
    # torch's product is not offered for these widths, and a weight may have the input's axis first
    weight_ENK = drawn(E, D, N, seed=2, device=triton_device).transpose(1, 2) / 5
    found = []
    for backend in (Backend.REFERENCE, Backend.TRITON):
        x_SK = drawn(T * J, D, seed=4, device=triton_device).requires_grad_()
        is_exact = exact and backend is Backend.TRITON
        y_SN = adapted_product(x_SK, weight_ENK, rows, factors=None, exact=is_exact, backend=backend)
        end = int(rows.ends_E[-1])
        y_SN[:end].backward(drawn(end, N, seed=6, device=triton_device))
        assert x_SK.grad is not None
        found.append((y_SN.detach()[:end], x_SK.grad[:end]))
    for expected, own in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, atol=2e-5, rtol=2e-5)


def test_no_row_of_an_exact_product_notices_who_shares_its_expert(triton_device: str) -> None:
    weight_ENK, x_TD = drawn(E, N, D, seed=2, device=triton_device), drawn(T, D, seed=4, device=triton_device)
    index_TJ = drawn(T, E, seed=1, device="cpu").topk(J, dim=1).indices.to(triton_device)
    weights_TJ = torch.ones(T, J, device=triton_device)

    def block(own: slice) -> Tensor:
        rows = ExpertRows.of(index_TJ[own], num_experts=E)
        x_SD = spread_rows(x_TD[own], rows, backend=Backend.TRITON)
        y_SN = adapted_product(x_SD, weight_ENK, rows, factors=None, exact=True, backend=Backend.TRITON)
        return combine_rows(y_SN, weights_TJ[own], rows, backend=Backend.TRITON)

    assert torch.equal(block(slice(0, T))[20:41], block(slice(20, 41)))


def test_slots_of_rows_are_those_of_columns() -> None:
    ranks = (3, 0, 8)
    by_row = RowTables(segments(), slot_table(ranks), device="cpu")
    tables = LaunchTables(segments(), slot_table(ranks), device="cpu")
    found = SlotRows.of_rows(by_row.rows_T4, num_slots=3, max_rank=16)
    expected = SlotRows.of_columns(tables.slot_columns, num_slots=3, num_rows=T, max_rank=8)
    assert found.span_T.tolist() == expected.span_T.tolist()
    assert found.slots_Z2.tolist() == expected.slots_Z2.tolist() == [[0, 3], [16, 0], [32, 8], [0, 0]]
    assert found.scales_Z.tolist() == expected.scales_Z.tolist() == [2.0, 0.5, 1.0, 0.0]


def test_the_columns_of_a_layout_follow_an_update_in_the_same_memory() -> None:
    nothing = SegmentTable(num_rows=T, offsets=(0, 0, 0, 0), samples=())
    tables = LaunchTables(nothing, slot_table((3, 16, 8)), device="cpu", fixed_launch=True)
    before = SlotRows.of_columns(tables.slot_columns, num_slots=3, num_rows=T, max_rank=16)
    place = tables.slot_columns.data_ptr()
    assert set(before.span_T.tolist()) == {3}
    tables.update(segments(), slot_table((3, 16, 8)), fresh_slots=(0, 2))
    after = SlotRows.of_columns(tables.slot_columns, num_slots=3, num_rows=T, max_rank=16)
    assert tables.slot_columns.data_ptr() == place
    assert [after.span_T.tolist().index(slot) for slot in range(4)] == [0, *STOPS]
    assert after.fresh_Z.tolist() == [1, 0, 1, 0]


def rows_of_samples(lengths: tuple[int, ...], *, device: str) -> ExpertRows:
    """Return the rows of one slot with samples of ``lengths`` in exact numerics, all of which pass expert 1."""
    count = sum(lengths)
    table = SegmentTable.from_samples(lengths, slots=[1] * len(lengths), num_slots=3, num_rows=count)
    tables = LaunchTables(table, slot_table((3, 16, 8)), device=device, exact=True, fixed_launch=True, most_samples=5)
    slots = SlotRows.of_columns(tables.slot_columns, num_slots=3, num_rows=count, max_rank=16, exact=True)
    assert slots.num_spans == 6
    return ExpertRows.of(torch.ones(count, 1, dtype=torch.long, device=device), num_experts=E, slots=slots)


@pytest.mark.parametrize(
    ("lengths", "added"), [((2,), 2.0), ((1, 1), 0.0), ((40, 2), 42.0), ((1, 40, 1), 40.0)], ids=str
)
def test_exact_gradients_add_a_sample_s_rows_up_before_they_reach_the_sink(
    triton_device: str, lengths: tuple[int, ...], added: float
) -> None:
    """In float32 1 is too small for 2^24 and 2 is not, so the order of a sum shows."""
    rows = rows_of_samples(lengths, device=triton_device)
    assert rows.adapters is not None
    sink = torch.full((48, E, N), float(1 << 24), device=triton_device)
    kernels = implementation("grouped_experts", Backend.TRITON)
    ones = torch.ones(sum(lengths), N, device=triton_device)
    kernels.add_gradients(sink, s_SR=ones[:, :16].contiguous(), x_SK=ones, groups=rows.adapters)
    expected = torch.full_like(sink, float(1 << 24))
    expected[16:32, 1] += added
    assert torch.equal(sink, expected)
