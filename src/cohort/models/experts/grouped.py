"""A block of experts as grouped products over the whole stream, sorted on the device: for GPUs.

Shapes:  T rows of the stream · J experts of a token · S pairs of both, sorted · E experts · K input width
         N output width · R rank rows of the bank
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cohort.adapters.expert_names import expert_name
from cohort.adapters.linear import LoraContext
from cohort.kernels.grouped_experts import (
    ExpertRows,
    GroupedFactors,
    SlotRows,
    adapted_product,
    combine_rows,
    spread_rows,
)
from cohort.kernels.packed_linear import LaunchTables, LoraPart
from cohort.kernels.packed_linear.launch.slot_columns import slot_columns
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.staging import to_device_unwaited
from cohort.models.experts.stacked_weights import StackedWeights

__all__ = ["grouped_block"]


def grouped_block(
    x_TD: Tensor,
    index_TJ: Tensor,
    weights_TJ: Tensor,
    *,
    up: StackedWeights,
    down: StackedWeights,
    activation: Callable[[Tensor], Tensor],
    lora: LoraContext | None,
    exact: bool = False,
) -> Tensor:
    """Return what :class:`~cohort.models.experts.expert_block.ExpertBlock` does, one product for all experts.

    Nothing waits for the device, and no launch depends on the routing: a CUDA graph can record it.

    Args:
        exact: Whether a row must have the same bits in any stream.
    """
    slots = None if lora is None else _slot_rows(lora)
    rows = ExpertRows.of(index_TJ, num_experts=up.num_experts, slots=slots)
    hidden_SK = activation(_product(up, spread_rows(x_TD, rows), rows, lora, exact=exact))
    return combine_rows(_product(down, hidden_SK, rows, lora, exact=exact), weights_TJ, rows)


def _slot_rows(lora: LoraContext) -> SlotRows:
    tables, num_slots = lora.tables, lora.slots.num_slots
    if isinstance(tables, LaunchTables):
        return SlotRows.of_columns(
            tables.slot_columns,
            num_slots=num_slots,
            num_rows=tables.num_rows,
            max_rank=tables.max_rank,
            exact=tables.exact,
        )
    if isinstance(tables, RowTables):
        return SlotRows.of_rows(tables.rows_T4, num_slots=num_slots, max_rank=tables.rank_class)
    # without tables nothing is recorded, and gradients are added
    device = next(iter(lora.factors.values())).a_RK.device
    columns = to_device_unwaited(slot_columns(lora.segments, lora.slots), device)
    return SlotRows.of_columns(
        columns, num_slots=num_slots, num_rows=lora.segments.num_rows, max_rank=max(lora.slots.ranks, default=0)
    )


def _product(
    stacked: StackedWeights, x_SK: Tensor, rows: ExpertRows, lora: LoraContext | None, *, exact: bool
) -> Tensor:
    is_adapted = lora is not None and rows.adapters is not None and expert_name(stacked.name, 0) in lora.factors
    factors = _factors(stacked, lora) if lora is not None and is_adapted else None
    y_SN = adapted_product(x_SK, stacked.weight_ENK, rows, factors=factors, exact=exact)
    if stacked.bias_EN is not None:
        y_SN = y_SN + stacked.bias_EN.index_select(0, rows.expert_S.clamp_max(stacked.num_experts - 1))
    return y_SN


def _factors(stacked: StackedWeights, lora: LoraContext) -> GroupedFactors:
    first, last = (lora.factors[expert_name(stacked.name, e)] for e in (0, stacked.num_experts - 1))
    step = stacked.in_features + stacked.out_features
    _require_adjacent(first, last, step * (stacked.num_experts - 1))

    def all_experts(own: Tensor) -> Tensor:
        """Return the view of all experts' columns: an adapter's layout has them one after the other."""
        rows, width = own.shape
        return own.as_strided((rows, stacked.num_experts, width), (own.stride(0), step, 1), own.storage_offset())

    return GroupedFactors(
        a_REK=all_experts(first.a_RK),
        b_REN=all_experts(first.b_RN),
        grad_a_REK=None if first.grad_a_RK is None else all_experts(first.grad_a_RK),
        grad_b_REN=None if first.grad_b_RN is None else all_experts(first.grad_b_RN),
    )


def _require_adjacent(first: LoraPart, last: LoraPart, distance: int) -> None:
    found = last.a_RK.storage_offset() - first.a_RK.storage_offset()
    assert found == distance, f"experts {distance} columns apart in the layout are {found} apart in the bank"
