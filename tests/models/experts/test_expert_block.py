"""A block of experts against a plain loop in float32: ragged, empty and single experts, values and every gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.expert_names import expert_name, expert_shapes
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.segments import SegmentTable
from cohort.models.experts.expert_block import ExpertBlock
from cohort.models.experts.grouped import grouped_block
from cohort.models.experts.stacked_weights import StackedWeights

E, J, D, WIDTH = 5, 2, 24, 16
UP, DOWN = "layers.0.experts.gate_up_proj", "layers.0.experts.down_proj"
LAYOUT = AdapterLayout(
    {"layers.0.q_proj": (D, D)}
    | expert_shapes({UP: (E, D, 2 * WIDTH), DOWN: (E, WIDTH, D)})
    | {"layers.0.o_proj": (D, D)}
)
SPECS = (AdapterSpec(r=3, lora_alpha=6), AdapterSpec(r=16, lora_alpha=8, use_rslora=True))
LENGTHS, SLOTS = (7, 1, 12, 5), (0, 0, 1, -1)
FILLERS = 3
ROWS = sum(LENGTHS) + FILLERS


def activation(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@dataclass(frozen=True, eq=False)
class Case:
    """A block, two adapters in a bank, and a stream."""

    block: ExpertBlock
    bank: AdapterBank
    x_TD: Tensor
    weights_TJ: Tensor
    bias: bool


def case(*, bias: bool = False, lengths: Sequence[int] = LENGTHS, fillers: int = FILLERS) -> Case:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        found: Tensor = torch.randn(*shape, generator=generator) / float(shape[-1]) ** 0.5
        return found

    up = StackedWeights(UP, drawn(E, 2 * WIDTH, D), drawn(E, 2 * WIDTH) if bias else None)
    # one of them as gpt-oss keeps it, the input's axis first
    down = StackedWeights(DOWN, drawn(E, WIDTH, D).transpose(1, 2), drawn(E, D) if bias else None)
    bank = AdapterBank(LAYOUT, num_slots=2, num_rank_rows=32)
    for spec in SPECS:
        bank.insert(spec, AdapterState(weights=drawn(spec.r, LAYOUT.width)))
    rows = sum(lengths) + fillers
    weights_TJ = torch.rand(rows, J, generator=generator)
    return Case(ExpertBlock(up=up, down=down, activation=activation), bank, drawn(rows, D), weights_TJ, bias)


def context(bank: AdapterBank, lengths: Sequence[int] = LENGTHS, slots: Sequence[int] = SLOTS) -> LoraContext:
    rows = sum(lengths) + (FILLERS if lengths is LENGTHS else 0)
    return bank.context(SegmentTable.from_samples(lengths, slots=slots, num_slots=2, num_rows=rows))


def expected(found: Case, index_TJ: Tensor, x_TD: Tensor, factors_RD: Tensor) -> Tensor:
    """Return the sum over each token's experts, with W + s B A as the weight of each; an expert E is none."""
    slot_of = [slot for length, slot in zip(LENGTHS, SLOTS, strict=True) for _ in range(length)] + [-1] * FILLERS

    def weight(stacked: StackedWeights, expert: int, slot: int) -> Tensor:
        own = stacked.weight_ENK[expert]
        if slot < 0:
            return own
        columns = LAYOUT.columns[expert_name(stacked.name, expert)]
        rows = factors_RD[found.bank.slot_table().rank_rows(slot)]
        return own + SPECS[slot].scale * rows[:, columns.b].T @ rows[:, columns.a]

    rows = []
    for token, slot in enumerate(slot_of):
        total = torch.zeros(D)
        for place in range(J):
            if (expert := int(index_TJ[token, place])) == E:
                continue
            y = x_TD[token]
            for stacked in (found.block.up, found.block.down):
                y = weight(stacked, expert, slot) @ y
                y = y if stacked.bias_EN is None else y + stacked.bias_EN[expert]
                y = activation(y) if stacked is found.block.up else y
            total = total + found.weights_TJ[token, place] * y
        rows.append(total)
    return torch.stack(rows)


def routes(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    picked = torch.stack([torch.randperm(E, generator=generator)[:J] for _ in range(ROWS)])
    if kind == "an expert without tokens":
        picked = picked.where(picked != 2, torch.tensor(4))
        picked[picked[:, 0] == picked[:, 1], 0] = 1
    if kind == "one token":
        picked = picked.where(picked != 0, torch.tensor(1))
        picked[9, 0] = 0
    if kind == "all tokens":
        picked = torch.tensor([[3, 1]]).expand(ROWS, J).clone()
    if kind == "no expert":
        picked[::3, 1] = E
    return picked


KINDS = ["ragged", "an expert without tokens", "one token", "all tokens", "no expert"]


@pytest.mark.parametrize("form", ["by expert", "padded", "grouped"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_block_is_its_definition(kind: str, form: str, bias: bool) -> None:
    found, index_TJ = case(bias=bias), routes(kind)
    block = found.block
    x_TD = found.x_TD.clone().requires_grad_()
    weights_TJ = found.weights_TJ.clone().requires_grad_()
    lora = context(found.bank)
    if form == "grouped":
        y_TD = grouped_block(x_TD, index_TJ, weights_TJ, up=block.up, down=block.down, activation=activation, lora=lora)
    else:
        y_TD = block(x_TD, index_TJ, weights_TJ, lora=lora, pads=form == "padded")
    direction = torch.linspace(-1, 1, y_TD.numel()).view_as(y_TD)
    (y_TD * direction).sum().backward()

    found_x, found_weights = found.x_TD.clone().requires_grad_(), found.weights_TJ.clone().requires_grad_()
    factors_RD = found.bank.weights_RD.clone().requires_grad_()
    other = Case(block, found.bank, found_x, found_weights, bias)
    reference = expected(other, index_TJ, found_x, factors_RD)
    (reference * direction).sum().backward()
    torch.testing.assert_close(y_TD, reference, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x_TD.grad, found_x.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights_TJ.grad, found_weights.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.bank.grads_RD, factors_RD.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["by expert", "grouped"])
def test_without_adapters_it_is_the_frozen_block(form: str) -> None:
    found, index_TJ = case(), routes("ragged")
    if form == "grouped":
        y_TD = grouped_block(
            found.x_TD,
            index_TJ,
            found.weights_TJ,
            up=found.block.up,
            down=found.block.down,
            activation=activation,
            lora=None,
        )
    else:
        y_TD = found.block(found.x_TD, index_TJ, found.weights_TJ, lora=None)
    reference = expected(found, index_TJ, found.x_TD, torch.zeros_like(found.bank.weights_RD))
    torch.testing.assert_close(y_TD, reference, rtol=1e-5, atol=1e-5)


def test_no_token_s_bits_depend_on_who_shares_its_experts() -> None:
    found, index_TJ = case(), routes("ragged")
    together = found.block(found.x_TD, index_TJ, found.weights_TJ, lora=context(found.bank), pads=True)
    start = LENGTHS[0] + LENGTHS[1]
    rows = slice(start, start + LENGTHS[2])
    lora = found.bank.context(SegmentTable.from_samples([LENGTHS[2]], slots=[1], num_slots=2, num_rows=LENGTHS[2]))
    alone = found.block(found.x_TD[rows], index_TJ[rows], found.weights_TJ[rows], lora=lora, pads=True)
    assert torch.equal(together[rows], alone)


def test_a_sample_without_rows_is_none() -> None:
    found = case(lengths=(0, 4), fillers=0)
    lora = found.bank.context(SegmentTable.from_samples([0, 4], slots=[0, 1], num_slots=2, num_rows=4))
    index_TJ = torch.tensor([[0, 1]]).expand(4, J)
    y_TD = found.block(found.x_TD, index_TJ, found.weights_TJ, lora=lora)
    assert y_TD.shape == (4, D)
    empty = found.block(
        found.x_TD[:0],
        index_TJ[:0],
        found.weights_TJ[:0],
        lora=found.bank.context(SegmentTable.from_samples([], slots=[], num_slots=2, num_rows=0)),
    )
    assert empty.shape == (0, D)
