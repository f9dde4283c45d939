"""A router over experts against its definition in float64; and what it launches, which follows from no routing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.expert_names import expert_name, expert_shapes
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.gated_activation import Activation
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.segments import SegmentTable
from cohort.models.experts.mixture import MixtureOfExperts
from cohort.models.experts.sparse_mlp import SparseMlp
from cohort.models.experts.stacked_weights import StackedWeights

E, J, D, WIDTH = 5, 2, 24, 13
SHAPES = {
    "model.layers.0.mlp.experts.gate_up_proj": (E, D, 2 * WIDTH),
    "model.layers.0.mlp.experts.down_proj": (E, WIDTH, D),
}
LAYOUT = AdapterLayout(expert_shapes(SHAPES))
LENGTHS, ROWS = (7, 1, 12, 5), 32


def drawn(*shape: int, seed: int) -> Tensor:
    found: Tensor = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / float(shape[-1]) ** 0.5
    return found


def sparse_mlp(*, renormalises: bool = True) -> SparseMlp:
    mixture = MixtureOfExperts(
        num_experts=E,
        experts_per_token=J,
        intermediate_size=WIDTH,
        renormalises=renormalises,
        sparse_layers=frozenset({0}),
    )
    stacked = [
        StackedWeights(path, drawn(num_experts, outs, ins, seed=seed))
        for seed, (path, (num_experts, ins, outs)) in enumerate(SHAPES.items())
    ]
    return SparseMlp(
        mixture, router_ED=4 * drawn(E, D, seed=2), up=stacked[0], down=stacked[1], activation=Activation.SILU
    )


def filled_bank() -> AdapterBank:
    bank = AdapterBank(LAYOUT, num_slots=2, num_rank_rows=32)
    for slot, spec in enumerate((AdapterSpec(r=3, lora_alpha=6), AdapterSpec(r=16, lora_alpha=8))):
        bank.insert(spec, AdapterState(weights=drawn(spec.r, LAYOUT.width, seed=5 + slot)))
    return bank


def segments(lengths: Sequence[int] = LENGTHS) -> SegmentTable:
    return SegmentTable.from_samples(lengths, slots=(0, 0, 1, -1), num_slots=2, num_rows=ROWS)


def definition(mlp: SparseMlp, x_TD: Tensor, factors_RD: Tensor, bank: AdapterBank, *, renormalises: bool) -> Tensor:
    """Return the block in float64, token by token, with W + s B A as the weight of each expert."""
    slot_T = torch.full((ROWS,), -1)
    for span in segments().samples:
        slot_T[span.start : span.stop] = span.slot

    def product(stacked: StackedWeights, expert: int, slot: int, x_K: Tensor) -> Tensor:
        weight_NK = stacked.weight_ENK[expert].double()
        if slot >= 0:
            columns, rows = LAYOUT.columns[expert_name(stacked.name, expert)], bank.rank_rows(slot)
            weight_NK = weight_NK + bank.spec(slot).scale * (
                factors_RD[rows, columns.b].T @ factors_RD[rows, columns.a]
            )
        return weight_NK @ x_K

    router_ED = 4 * drawn(E, D, seed=2).double()
    rows = []
    for x_D, slot in zip(x_TD, slot_T.tolist(), strict=True):
        weights_J, index_J = (router_ED @ x_D).softmax(0).topk(J)
        if renormalises:
            weights_J = weights_J / weights_J.sum()
        total_D = torch.zeros(D, dtype=torch.float64)
        for weight, expert in zip(weights_J, index_J.tolist(), strict=True):
            gate, up = product(mlp.block.up, expert, slot, x_D).chunk(2)
            total_D = total_D + weight * product(mlp.block.down, expert, slot, F.silu(gate) * up)
        rows.append(total_D)
    return torch.stack(rows)


@pytest.mark.parametrize("renormalises", [False, True])
@pytest.mark.parametrize("backend", [Backend.REFERENCE, Backend.TRITON])
def test_values_and_every_gradient_are_those_of_the_definition(backend: Backend, renormalises: bool) -> None:
    mlp, bank, x_TD = sparse_mlp(renormalises=renormalises), filled_bank(), drawn(ROWS, D, seed=8)
    reference_x, factors_RD = x_TD.double().requires_grad_(), bank.weights_RD.double().requires_grad_()
    expected = definition(mlp, reference_x, factors_RD, bank, renormalises=renormalises)
    direction = torch.linspace(-1, 1, ROWS * D).view(ROWS, D)
    (expected * direction).sum().backward()
    own_x = x_TD.clone().requires_grad_()
    with use_backend(backend):
        y_TD = mlp(own_x, bank.context(segments()))
        (y_TD * direction).sum().backward()
    for found, other in ((y_TD, expected), (own_x.grad, reference_x.grad), (bank.grads_RD, factors_RD.grad)):
        assert found is not None
        assert other is not None
        torch.testing.assert_close(found.double(), other, rtol=1e-5, atol=1e-5)


def test_a_token_has_the_same_bits_alone_and_with_others() -> None:
    mlp, bank, x_TD = sparse_mlp(), filled_bank(), drawn(ROWS, D, seed=8)
    together = mlp(x_TD, bank.context(segments()))
    start, count = LENGTHS[0] + LENGTHS[1], LENGTHS[2]
    alone_TD = torch.cat([x_TD[start : start + count], torch.zeros(ROWS - count, D)])
    lora = bank.context(SegmentTable.from_samples([count], slots=[1], num_slots=2, num_rows=ROWS))
    assert torch.equal(together[start : start + count], mlp(alone_TD, lora)[:count])


Operations = list[tuple[str, tuple[tuple[int, ...], ...]]]


class Recorded(TorchDispatchMode):
    """Notes each operation with the shapes of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Operations = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        results = found if isinstance(found, tuple | list) else (found,)
        shapes = tuple(tuple(own.shape) for own in results if isinstance(own, Tensor))
        self.operations.append((str(func), shapes))
        return found


# what a GPU is waited for, since the host must know a number or a shape
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount", "repeat_interleave", "is_nonzero")


def operations_of(lora: LoraContext | None, *, seed: int, scale: float) -> Operations:
    x_TD = (scale * drawn(ROWS, D, seed=seed)).requires_grad_()
    mlp = sparse_mlp()
    recorded = Recorded()
    with recorded, use_backend(Backend.TRITON):
        mlp(x_TD, lora).sum().backward()
    return recorded.operations


@pytest.mark.parametrize("is_adapted", [False, True])
def test_no_routing_changes_what_is_launched_and_nothing_is_waited_for(is_adapted: bool) -> None:
    bank = filled_bank()
    with use_backend(Backend.TRITON):
        lora = bank.context(segments()) if is_adapted else None
    # as if the tables of slots could not be sent: they are on the device before the layers
    usual, other = operations_of(lora, seed=8, scale=1.0), operations_of(lora, seed=9, scale=0.0)
    # with zeros all scores are equal, and all tokens go to the same experts
    assert usual == other
    assert not [name for name, _ in usual if any(word in name for word in WAITS)]
    if is_adapted:
        assert isinstance(lora, LoraContext)
        assert isinstance(lora.tables, LaunchTables)


def test_in_exact_numerics_a_step_in_one_pass_is_its_samples_one_by_one() -> None:
    """Up to rounding: the interpreter's products give a row other bits at another place. A GPU's bits have a test."""
    close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    mlp, bank, x_TD = sparse_mlp(), filled_bank(), drawn(ROWS, D, seed=8)
    mlp.use_exact(exact=True, agreed=None)
    bank.is_exact = True
    starts = [0, 7, 8]
    with use_backend(Backend.TRITON):
        own_x = x_TD.clone().requires_grad_()
        y_TD = mlp(own_x, bank.context(segments(), fresh_slots=(0, 1)))
        y_TD.square().sum().backward()
        assert own_x.grad is not None
        together = bank.grads_RD.clone()
        bank.grads_RD.fill_(torch.nan)
        fresh = {0, 1}
        for start, length, slot in zip(starts, LENGTHS, (0, 0, 1), strict=False):
            table = SegmentTable.from_samples([length], slots=[slot], num_slots=2, num_rows=ROWS)
            alone = torch.cat([x_TD[start : start + length], x_TD[: ROWS - length]]).requires_grad_()
            found = mlp(alone, bank.context(table, fresh_slots=fresh & {slot}))
            found[:length].square().sum().backward()
            fresh.discard(slot)
            assert alone.grad is not None
            close(found[:length], y_TD[start : start + length])
            close(alone.grad[:length], own_x.grad[start : start + length])
    for slot in (0, 1):
        rows = bank.rank_rows(slot)
        close(bank.grads_RD[rows], together[rows])


def test_slots_come_and_go_in_the_tables_alone() -> None:
    """A recorded pass reads other slots, ranks and rows at the same addresses: as a pass that is launched for them."""
    mlp, bank, x_TD = sparse_mlp(), filled_bank(), drawn(ROWS, D, seed=8)
    nothing = SegmentTable(num_rows=ROWS, offsets=(0, 0, 0), samples=())
    with use_backend(Backend.TRITON):
        tables = LaunchTables(nothing, bank.slot_table(), device="cpu", fixed_launch=True)
        plain = bank.context(segments())
        lora = LoraContext(factors=plain.factors, slots=plain.slots, segments=nothing, tables=tables)
        found = []
        for own in (plain, lora):
            tables.update(segments(), bank.slot_table(), fresh_slots=(0, 1))
            bank.grads_RD.zero_()
            own_x = x_TD.clone().requires_grad_()
            y_TD = mlp(own_x, own)
            y_TD.square().sum().backward()
            assert own_x.grad is not None
            found.append((y_TD.detach(), own_x.grad, bank.grads_RD.clone()))
    for expected, other in zip(*found, strict=True):
        assert torch.equal(expected, other)
