"""Grouped experts in plain torch, group by group: what the kernels are compared with, and what runs without Triton.

Shapes:  as in the kernels' file
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

from cohort.kernels.grouped_experts.groups import AdapterGroups, ExpertRows

__all__ = ["add_gradients", "combine", "combine_backward", "expand_into", "product", "shrink"]


def product(x_SK: Tensor, weight_ENK: Tensor, *, rows: ExpertRows, exact: bool) -> Tensor:
    """Return each row's product [S, N] with its expert; rows of no expert are anything.

    torch multiplies, so ``exact`` is not offered here: on a CPU experts are computed one by one.
    """
    assert not exact, "exact products are Triton's"
    return grouped_mm(x_SK, weight_ENK.transpose(1, 2), offs=rows.ends_E)


def combine(y_SN: Tensor, *, place_TJ: Tensor, weights_TJ: Tensor | None, end_1: Tensor) -> Tensor:
    """Return the weighted sum [T, N] of each token's pairs that are before ``end``."""
    y_TJN = y_SN.index_select(0, place_TJ.reshape(-1)).view(*place_TJ.shape, y_SN.shape[1])
    y_TJN = y_TJN.masked_fill((place_TJ >= end_1)[:, :, None], 0.0)
    if weights_TJ is not None:
        y_TJN = y_TJN * weights_TJ[:, :, None]
    return y_TJN.sum(dim=1).to(y_SN.dtype)


def combine_backward(
    dy_TN: Tensor, *, y_SN: Tensor, place_TJ: Tensor, weights_TJ: Tensor, end_1: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the pairs [S, N] and of the weights [T, J]."""
    place_S, is_none_TJ = place_TJ.reshape(-1), place_TJ >= end_1
    y_TJN = y_SN.index_select(0, place_S).view(*place_TJ.shape, y_SN.shape[1])
    dweights_TJ = (y_TJN * dy_TN[:, None]).sum(dim=2).masked_fill(is_none_TJ, 0.0)
    dy_SN = torch.empty_like(y_SN)
    dy_SN[place_S] = (dy_TN[:, None] * weights_TJ[:, :, None]).flatten(0, 1).to(y_SN.dtype)
    return dy_SN, dweights_TJ.to(weights_TJ.dtype)


def shrink(x_SK: Tensor, *, factor_REK: Tensor, groups: AdapterGroups) -> Tensor:
    """Return ``scale * x F^T`` [S, R] of each row's own group; zeros in other rows."""
    s_SR = x_SK.new_zeros(len(x_SK), groups.max_rank)
    scales = groups.scales_Z.tolist()
    for rows, expert, slot, rank_rows in _each(groups):
        rank = rank_rows.stop - rank_rows.start
        s_SR[rows, :rank] = scales[slot] * (x_SK[rows] @ factor_REK[rank_rows, expert].t())
    return s_SR


def expand_into(y_SN: Tensor, *, s_SR: Tensor, factor_REN: Tensor, groups: AdapterGroups) -> None:
    """Add ``s F`` of each row's own group to ``y``."""
    for rows, expert, _, rank_rows in _each(groups):
        y_SN[rows] += s_SR[rows, : rank_rows.stop - rank_rows.start] @ factor_REN[rank_rows, expert]


def add_gradients(sink_REK: Tensor, *, s_SR: Tensor, x_SK: Tensor, groups: AdapterGroups) -> None:
    """Add ``s^T x`` of each group to the sink of its expert and slot, or write it over what that holds."""
    fresh = groups.fresh_Z.tolist()
    for rows, expert, slot, rank_rows in _each(groups):
        gradient = s_SR[rows, : rank_rows.stop - rank_rows.start].t() @ x_SK[rows]
        if fresh[slot]:
            sink_REK[rank_rows, expert] = gradient.to(sink_REK.dtype)
        else:
            sink_REK[rank_rows, expert] += gradient


def _each(groups: AdapterGroups) -> Iterator[tuple[slice, int, int, slice]]:
    """Yield rows, expert, slot and rank rows of every group with an adapter, also of those without rows."""
    begin = 0
    for group, end in enumerate(groups.ends_G.tolist()):
        expert, slot = divmod(group, groups.num_slots)
        start, rank = groups.slots_Z2[slot].tolist()
        if rank:
            yield slice(begin, end), expert, slot, slice(start, start + rank)
        begin = end
