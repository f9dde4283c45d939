"""Grouped experts on a GPU against a plain loop in float32, pass after pass as training runs them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.kernels.segments import SegmentTable
from cohort.models.experts.expert_block import ExpertBlock
from cohort.models.experts.stacked_weights import StackedWeights
from tests.models.experts.test_expert_block import (
    KINDS,
    LAYOUT,
    LENGTHS,
    ROWS,
    SLOTS,
    SPECS,
    Case,
    activation,
    case,
    expected,
    routes,
)

pytestmark = pytest.mark.gpu

# of a float32 reference: sums in another order, and operands of 8 bits of mantissa
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def on_gpu(found: Case, dtype: torch.dtype) -> tuple[ExpertBlock, AdapterBank]:
    """Return the block and the adapters of ``found`` there; products read ``dtype``."""

    def moved(stacked: StackedWeights) -> StackedWeights:
        bias = None if stacked.bias_EN is None else stacked.bias_EN.to("cuda", dtype)
        # a view stays one: gpt-oss keeps the input's axis first
        return StackedWeights(stacked.name, stacked.weight_ENK.to("cuda", dtype), bias)

    bank = AdapterBank(LAYOUT, num_slots=2, num_rank_rows=32, device="cuda", compute_dtype=dtype)
    for slot, spec in enumerate(SPECS):
        bank.insert(spec, AdapterState(weights=found.bank.weights_RD[found.bank.rank_rows(slot)]))
    return ExpertBlock(up=moved(found.block.up), down=moved(found.block.down), activation=activation), bank


def apart(own: Tensor, other: Tensor) -> float:
    return float((own.float().cpu() - other).norm() / other.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_every_gradient_are_those_of_a_plain_loop(kind: str, dtype: torch.dtype, bias: bool) -> None:
    found, index_TJ = case(bias=bias), routes(kind)
    x_TD, weights_TJ = (own.clone().requires_grad_() for own in (found.x_TD, found.weights_TJ))
    factors_RD = found.bank.weights_RD.clone().requires_grad_()
    reference = expected(Case(found.block, found.bank, x_TD, weights_TJ, bias), index_TJ, x_TD, factors_RD)
    direction = torch.linspace(-1, 1, reference.numel()).view_as(reference)
    (reference * direction).sum().backward()
    block, bank = on_gpu(found, dtype)
    segments = SegmentTable.from_samples(LENGTHS, slots=SLOTS, num_slots=2, num_rows=ROWS)
    for turn in range(3):
        # the first pass writes over what an earlier step left, the second as well, the third adds
        bank.grads_RD.fill_(torch.nan) if turn == 0 else None
        lora = bank.context(segments, fresh_slots=() if turn == 2 else (0, 1))
        own_x = found.x_TD.to("cuda", dtype).requires_grad_()
        own_weights = found.weights_TJ.cuda().requires_grad_()
        y_TD = block(own_x, index_TJ.cuda(), own_weights, lora=lora)
        (y_TD.float() * direction.cuda()).sum().backward()
        assert apart(y_TD.detach(), reference.detach()) < TOLERANCE[dtype]
        for own, other in ((own_x, x_TD), (own_weights, weights_TJ)):
            assert own.grad is not None
            assert other.grad is not None
            assert apart(own.grad, other.grad) < TOLERANCE[dtype]
        assert factors_RD.grad is not None
        for slot in range(len(SPECS)):
            rows = bank.rank_rows(slot)
            for name, columns in LAYOUT.columns.items():
                if "experts" not in name:
                    continue
                for part in (columns.a, columns.b):
                    other = factors_RD.grad[found.bank.rank_rows(slot), part] * (2 if turn == 2 else 1)
                    difference = (bank.grads_RD[rows, part].cpu() - other).norm()
                    # of one of the factors, relative to what all of them have, which is added twice in the end
                    size = factors_RD.grad.norm() * (2 if turn == 2 else 1)
                    assert difference <= TOLERANCE[dtype] * size / 3, (name, turn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_without_an_adapter_gets_the_frozen_experts(dtype: torch.dtype) -> None:
    found, index_TJ = case(), routes("ragged")
    block, _ = on_gpu(found, dtype)
    y_TD = block(found.x_TD.to("cuda", dtype), index_TJ.cuda(), found.weights_TJ.cuda(), lora=None)
    reference = expected(found, index_TJ, found.x_TD, torch.zeros_like(found.bank.weights_RD))
    columns = slice(sum(LENGTHS[:3]), sum(LENGTHS))
    assert apart(y_TD[columns], reference[columns]) < TOLERANCE[dtype]
