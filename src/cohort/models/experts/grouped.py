"""A block of experts as grouped products over the whole stream, sorted on the device: for GPUs.

A group is an expert for the frozen products, and an expert and a slot for the adapters' terms. Nothing is read back
from the device, so routing costs no wait.

Shapes:  T rows of the stream · J experts of a token · S pairs of both, sorted · E experts · Z slots with rows, and none
         G groups, E * Z · K input width · N output width · r largest rank, a multiple of 16 · R rank rows of the bank
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

from cohort.adapters.expert_names import expert_name
from cohort.adapters.linear import LoraContext
from cohort.kernels.packed_linear import LaunchTables, LoraPart
from cohort.models.experts.stacked_weights import StackedWeights

__all__ = ["grouped_block"]

# what a grouped product takes in 16 bits: rows of a multiple of 16 bytes
_RANK_MULTIPLE = 16


def grouped_block(
    x_TD: Tensor,
    index_TJ: Tensor,
    weights_TJ: Tensor,
    *,
    up: StackedWeights,
    down: StackedWeights,
    activation: Callable[[Tensor], Tensor],
    lora: LoraContext | None,
) -> Tensor:
    """Return what :class:`~cohort.models.experts.expert_block.ExpertBlock` does, one product for all experts."""
    groups = _groups(index_TJ, num_experts=up.num_experts, lora=lora)
    x_SD = x_TD.index_select(0, groups.token_S).masked_fill(groups.is_nowhere_S1, 0.0)
    hidden_SK = activation(_product(up, x_SD, groups, lora))
    y_SD = _product(down, hidden_SK, groups, lora)
    y_SD = y_SD.index_select(0, groups.place_S)
    num_tokens, each = index_TJ.shape
    y_TJD = y_SD.view(num_tokens, each, y_SD.shape[1]) * weights_TJ[:, :, None]
    return y_TJD.sum(dim=1).to(x_TD.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Groups:
    """Pairs sorted by group.

    Attributes:
        token_S: The token of each sorted pair.
        place_S: Where each pair of the stream is among the sorted ones.
        ends_E, ends_G: The row after the last of each expert, and of each group (int32).
        expert_S: The expert of each sorted pair, the last one for pairs without an expert.
        slot_S: The position of each sorted pair's slot among ``slots``.
        is_nowhere_S1: Which sorted pairs have no expert.
        slots: The slots with rows; the position behind the last is that of rows of no adapter.
    """

    token_S: Tensor
    place_S: Tensor
    ends_E: Tensor
    ends_G: Tensor
    expert_S: Tensor
    slot_S: Tensor
    is_nowhere_S1: Tensor
    slots: tuple[int, ...]


def _groups(index_TJ: Tensor, *, num_experts: int, lora: LoraContext | None) -> _Groups:
    device, (num_tokens, each) = index_TJ.device, index_TJ.shape
    slots: tuple[int, ...] = ()
    stops: list[int] = []
    if lora is not None:
        own = lora.segments
        slots = tuple(slot for slot in range(own.num_slots) if own.rows(slot).stop > own.rows(slot).start)
        stops = [own.rows(slot).stop for slot in slots]
    token_S = torch.arange(num_tokens, device=device).repeat_interleave(each)
    slot_S = torch.bucketize(token_S, torch.tensor(stops, dtype=torch.long, device=device), right=True)
    num_slots = len(slots) + 1
    key_S, order_S = torch.sort(index_TJ.reshape(-1) * num_slots + slot_S, stable=True)
    numbers_G = torch.arange(num_experts * num_slots, device=device)
    ends_G = torch.searchsorted(key_S, numbers_G, right=True).to(torch.int32)
    place_S = torch.empty_like(order_S)
    place_S[order_S] = torch.arange(len(order_S), device=device)
    expert_S = key_S // num_slots
    return _Groups(
        token_S=token_S[order_S],
        place_S=place_S,
        ends_E=ends_G[num_slots - 1 :: num_slots].contiguous(),
        ends_G=ends_G,
        expert_S=expert_S.clamp_max(num_experts - 1),
        slot_S=key_S % num_slots,
        is_nowhere_S1=(expert_S >= num_experts)[:, None],
        slots=slots,
    )


def _product(stacked: StackedWeights, x_SK: Tensor, groups: _Groups, lora: LoraContext | None) -> Tensor:
    y_SN = grouped_mm(x_SK, stacked.weight_ENK.transpose(1, 2), offs=groups.ends_E)
    if stacked.bias_EN is not None:
        y_SN = y_SN + stacked.bias_EN.index_select(0, groups.expert_S)
    if lora is not None and groups.slots and expert_name(stacked.name, 0) in lora.factors:
        factors = _StackedFactors.of(stacked, lora, groups.slots)
        scales = [lora.slots.scales[slot] for slot in groups.slots]
        scale_S1 = x_SK.new_tensor([*scales, 0.0]).index_select(0, groups.slot_S)[:, None]
        y_SN = y_SN + _GroupedTerm.apply(x_SK, scale_S1, groups.ends_G, factors)
    # a product leaves the rows of no group as the memory was
    return y_SN.masked_fill(groups.is_nowhere_S1, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _StackedFactors:
    """The factors of every expert of a parameter, as the bank keeps them.

    Attributes:
        a_REK, b_REN: Views of the bank's columns.
        grad_a_REK, grad_b_REN: The same of its gradients; None where nothing is trained.
        rank_rows: The rank rows of each slot with rows.
        are_fresh: Of each of them, whether its gradients are written over what the bank holds instead of added to it.
    """

    a_REK: Tensor
    b_REN: Tensor
    grad_a_REK: Tensor | None
    grad_b_REN: Tensor | None
    rank_rows: tuple[slice, ...]
    are_fresh: tuple[bool, ...]

    @classmethod
    def of(cls, stacked: StackedWeights, lora: LoraContext, slots: tuple[int, ...]) -> _StackedFactors:
        first, last = (lora.factors[expert_name(stacked.name, e)] for e in (0, stacked.num_experts - 1))
        step = stacked.in_features + stacked.out_features
        _require_adjacent(first, last, step * (stacked.num_experts - 1))
        fresh = lora.tables.fresh_slots if isinstance(lora.tables, LaunchTables) else frozenset[int]()

        def all_experts(own: Tensor) -> Tensor:
            """Return the view of all experts' columns: an adapter's layout has them one after the other."""
            rows, width = own.shape
            return own.as_strided((rows, stacked.num_experts, width), (own.stride(0), step, 1), own.storage_offset())

        return cls(
            a_REK=all_experts(first.a_RK),
            b_REN=all_experts(first.b_RN),
            grad_a_REK=None if first.grad_a_RK is None else all_experts(first.grad_a_RK),
            grad_b_REN=None if first.grad_b_RN is None else all_experts(first.grad_b_RN),
            rank_rows=tuple(lora.slots.rank_rows(slot) for slot in slots),
            are_fresh=tuple(slot in fresh for slot in slots),
        )

    def by_group(self, of_REX: Tensor) -> Tensor:
        """Return the factors [G, r, X] of every expert and slot, zeros below a slot's rank and for no slot."""
        num_experts, width = of_REX.shape[1:]
        most = max(rows.stop - rows.start for rows in self.rank_rows)
        rank = -(-most // _RANK_MULTIPLE) * _RANK_MULTIPLE
        found = of_REX.new_zeros(num_experts, len(self.rank_rows) + 1, rank, width)
        for place, rows in enumerate(self.rank_rows):
            found[:, place, : rows.stop - rows.start] = of_REX[rows].transpose(0, 1)
        return found.view(-1, rank, width)

    def add_gradients(self, grad_a_GrK: Tensor, grad_b_GrN: Tensor) -> None:
        """Add gradients to those of the bank, or write them over what it holds."""
        for sink_REX, grad_GrX in ((self.grad_a_REK, grad_a_GrK), (self.grad_b_REN, grad_b_GrN)):
            assert sink_REX is not None, "a pass with gradients has sinks"
            grad_EZrX = grad_GrX.view(sink_REX.shape[1], -1, *grad_GrX.shape[1:])
            for place, (rows, is_fresh) in enumerate(zip(self.rank_rows, self.are_fresh, strict=True)):
                grad_rEX = grad_EZrX[:, place, : rows.stop - rows.start].transpose(0, 1)
                if is_fresh:
                    sink_REX[rows].copy_(grad_rEX)
                else:
                    sink_REX[rows] += grad_rEX


def _require_adjacent(first: LoraPart, last: LoraPart, distance: int) -> None:
    found = last.a_RK.storage_offset() - first.a_RK.storage_offset()
    assert found == distance, f"experts {distance} columns apart in the layout are {found} apart in the bank"


class _GroupedTerm(torch.autograd.Function):
    """``scale * (x A) B`` of each row's own group; gradients of the factors go to the bank."""

    @staticmethod
    def forward(ctx: Any, x_SK: Tensor, scale_S1: Tensor, ends_G: Tensor, factors: _StackedFactors) -> Tensor:
        a_GrK, b_GrN = factors.by_group(factors.a_REK), factors.by_group(factors.b_REN)
        s_Sr = grouped_mm(x_SK, a_GrK.transpose(1, 2), offs=ends_G) * scale_S1
        ctx.save_for_backward(x_SK, s_Sr, scale_S1, ends_G)
        ctx.factors = factors
        return grouped_mm(s_Sr, b_GrN, offs=ends_G)

    @staticmethod
    def backward(ctx: Any, dy_SN: Tensor) -> tuple[Tensor | None, ...]:
        x_SK, s_Sr, scale_S1, ends_G = ctx.saved_tensors
        factors: _StackedFactors = ctx.factors
        dy_SN = dy_SN.contiguous()
        a_GrK, b_GrN = factors.by_group(factors.a_REK), factors.by_group(factors.b_REN)
        ds_Sr = grouped_mm(dy_SN, b_GrN.transpose(1, 2), offs=ends_G) * scale_S1
        factors.add_gradients(
            grouped_mm(ds_Sr.t(), x_SK, offs=ends_G),
            grouped_mm(s_Sr.t(), dy_SN, offs=ends_G),
        )
        dx_SK = grouped_mm(ds_Sr, a_GrK, offs=ends_G) if ctx.needs_input_grad[0] else None
        return dx_SK, None, None, None
