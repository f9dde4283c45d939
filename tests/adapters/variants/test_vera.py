"""VeRA's vectors in a bank: the formula, every gradient, and what passes leave behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LinearPart, PackedLinear
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.vera import initial_vectors, lambda_d_columns, layout_projections, projection_widths
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

K, WIDTHS = 13, {"l.q_proj": 9, "l.k_proj": 5, "l.v_proj": 5}
# the widest linear is another one: its projections are sliced for these
LAYOUT = AdapterLayout({"l.q_proj": (K, 9), "l.v_proj": (K, 5), "l.down_proj": (21, 17)})
SPECS = (
    AdapterSpec(r=3, lora_alpha=5, use_vera=VectorAdapter(projection_prng_key=1)),
    AdapterSpec(r=2, lora_alpha=4),
    AdapterSpec(r=12, lora_alpha=1, use_vera=VectorAdapter()),
)
LENGTHS, SLOTS = [4, 1, 7, 5, 6], [0, 0, 1, 2, 2]


def states() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s.num_rows - s.first_state_row, LAYOUT.width, dtype=torch.float64) for s in SPECS]


def factors(spec: AdapterSpec, weights: Tensor, name: str) -> tuple[Tensor, Tensor]:
    columns, (ins, outs) = LAYOUT.columns[name], LAYOUT.linears[name]
    if spec.use_vera is None:
        return weights[:, columns.a], spec.scale * weights[:, columns.b].T
    pair = layout_projections(LAYOUT, spec.use_vera, r=spec.r)
    d, b = weights[0, lambda_d_columns(columns, r=spec.r)], weights[0, columns.b]
    return d[:, None] * pair.a_rK[:, :ins], b[:, None] * pair.b_Nr[:outs].double()


def expected(x: Tensor, weight: Tensor, weights: list[Tensor]) -> Tensor:
    y = torch.nn.functional.linear(x, weight)
    rows, added = 0, []
    for length, slot in zip(LENGTHS, SLOTS, strict=True):
        own = x[rows : rows + length]
        parts = [
            own @ factors(SPECS[slot], weights[slot], name)[0].T @ factors(SPECS[slot], weights[slot], name)[1].T
            if name in LAYOUT.linears
            else own.new_zeros(length, width)
            for name, width in WIDTHS.items()
        ]
        added.append(torch.cat(parts, dim=1))
        rows += length
    return y + torch.cat([*added, y.new_zeros(len(y) - rows, y.shape[1])])


@pytest.mark.parametrize("compute_dtype", [None, torch.float64])
def test_outputs_and_gradients_are_the_formula_s(compute_dtype: torch.dtype | None) -> None:
    weight = torch.randn(sum(WIDTHS.values()), K, dtype=torch.float64)
    x = torch.randn(32, K, dtype=torch.float64)
    weights = [state.requires_grad_() for state in states()]
    reference_x = x.clone().requires_grad_()
    y = expected(reference_x, weight, weights)
    dy = torch.randn_like(y)
    y.backward(dy)

    bank = AdapterBank(LAYOUT, num_slots=4, num_rank_rows=96, dtype=torch.float64, compute_dtype=compute_dtype)
    slots = [bank.insert(s, AdapterState(weights=w.detach())) for s, w in zip(SPECS, weights, strict=True)]
    linear = PackedLinear(
        FrozenLinear(weight), parts=tuple(LinearPart(name=n, out_features=w) for n, w in WIDTHS.items())
    )
    segments = SegmentTable.from_samples(LENGTHS, slots=SLOTS, num_slots=4, num_rows=32)
    own_x = x.clone().requires_grad_()
    found = linear(own_x, bank.context(segments))
    torch.testing.assert_close(found, y, rtol=1e-9, atol=1e-9)
    found.backward(dy)
    torch.testing.assert_close(own_x.grad, reference_x.grad, rtol=1e-9, atol=1e-9)
    bank.before_update(slots)
    for slot, reference in zip(slots, weights, strict=True):
        assert reference.grad is not None
        torch.testing.assert_close(bank.grads_RD[bank.rank_rows(slot)], reference.grad, rtol=1e-8, atol=1e-9)
    # gradients of factors would be added to in the next step
    assert not bank.grads_RD[: SPECS[0].num_factor_rows].any()


def test_a_state_comes_back_and_nothing_stays() -> None:
    bank = AdapterBank(LAYOUT, num_slots=2, num_rank_rows=64, dtype=torch.float64)
    state = states()[0]
    slot = bank.insert(SPECS[0], AdapterState(weights=state))
    assert torch.equal(bank.read(slot).weights, state)
    bank.grads_RD.fill_(1.0)
    bank.clear_gradients(slot)
    assert not bank.grads_RD[: SPECS[0].num_rows].any()
    bank.remove(slot)
    assert not bank.compute_RD.any()


def test_projections_are_as_wide_as_the_widest_linears() -> None:
    assert projection_widths(LAYOUT) == (21, 17)
    # a part of the layout with other widths draws other projections
    part = AdapterLayout({"l.q_proj": (K, 9)})
    whole, own = (layout_projections(layout, VectorAdapter(), r=3) for layout in (LAYOUT, part))
    assert not torch.equal(whole.a_rK[:, :K], own.a_rK)


def test_a_new_adapter_changes_nothing_yet() -> None:
    row_1D = initial_vectors(LAYOUT, VectorAdapter(d_initial=0.4), r=3, dtype=torch.float32)
    for columns in LAYOUT.columns.values():
        assert not row_1D[0, columns.b].any()
        assert torch.equal(row_1D[0, lambda_d_columns(columns, r=3)], torch.full((3,), 0.4))
    with pytest.raises(ValueError, match=r"l.q_proj: VeRA's r 14 is more than its 13 inputs"):
        initial_vectors(LAYOUT, VectorAdapter(), r=14, dtype=torch.float32)
