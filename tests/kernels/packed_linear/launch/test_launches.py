"""Each launch alone, against plain torch: S of every part, its expansion, and rows of no adapter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.packed_linear.launch.launches import expand, output_side_ds, shrink
from tests.kernels.closeness import assert_near
from tests.kernels.packed_linear.cases import SMALL, Case, make_case


@pytest.fixture
def case(triton_device: str) -> Case:
    return make_case(triton_device, lengths=[20, 13], ranks=[5, 16], widths=(24, 8), extra=7)


def test_shrink_gives_s_of_every_part_and_slot(case: Case) -> None:
    tables = case.tables()
    s = case.x.new_empty(2, case.x.shape[0], tables.num_columns)
    shrink(case.x, case.parts, s, tables.passes[0], tables=tables, row_keys_T=None, tiles=SMALL)
    for slot in range(2):
        rows, ranks = case.segments.rows(slot), case.slots.rank_rows(slot)
        for part, found in zip(case.parts, s, strict=True):
            assert_near(found[rows, : case.slots.ranks[slot]], case.x[rows].double() @ part.a_RK[ranks].double().T)


def test_ds_reads_each_part_s_own_columns(case: Case) -> None:
    tables = case.tables()
    ds = output_side_ds(case.dy, case.parts, tables.passes[0], tables=tables, tiles=SMALL)
    for slot in range(2):
        rows, ranks = case.segments.rows(slot), case.slots.rank_rows(slot)
        for part, found in zip(case.parts, ds, strict=True):
            exact = case.dy[rows, part.columns].double() @ part.b_RN[ranks].double().T
            assert_near(found[rows, : case.slots.ranks[slot]], case.slots.scales[slot] * exact)


@pytest.mark.parametrize("add", [False, True])
def test_expand_writes_or_adds_and_zeroes_rows_of_no_adapter(case: Case, add: bool) -> None:
    tables = case.tables()
    s = torch.randn(2, case.x.shape[0], tables.num_columns, device=case.x.device)
    before = torch.randn_like(case.dy)
    y = before.clone()
    expand(y, case.parts, s, tables.passes[0], tables=tables, tiles=SMALL, add=add)
    expected = before.double() if add else torch.zeros_like(before, dtype=torch.float64)
    for slot in range(2):
        rows, ranks = case.segments.rows(slot), case.slots.rank_rows(slot)
        for part, own in zip(case.parts, s, strict=True):
            term = own[rows, : case.slots.ranks[slot]].double() @ part.b_RN[ranks].double()
            expected[rows, part.columns] += case.slots.scales[slot] * term
    assert_near(y, expected)
    assert torch.equal(y[33:], before[33:] if add else torch.zeros_like(y[33:]))
