"""The public ops: rows to experts and back, and a product of experts with the terms of adapters.

Shapes:  T rows of the stream · J experts of a token · S pairs of both, sorted · E experts · K input width
         N output width · R rank rows of the bank
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.grouped_experts.groups import AdapterGroups, ExpertRows

__all__ = ["GroupedFactors", "adapted_product", "combine_rows", "spread_rows"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedFactors:
    """The factors of every expert of a parameter, as a bank keeps them: views of its columns.

    Attributes:
        a_REK, b_REN: The factors.
        grad_a_REK, grad_b_REN: Where their gradients go; None where nothing is trained.
    """

    a_REK: Tensor
    b_REN: Tensor
    grad_a_REK: Tensor | None
    grad_b_REN: Tensor | None


def spread_rows(x_TD: Tensor, rows: ExpertRows, *, backend: Backend | None = None) -> Tensor:
    """Return the row [S, D] of each sorted pair's token; differentiable."""
    found: Tensor = _Spread.apply(x_TD, rows, choose_backend(x_TD, backend=backend))
    return found


def combine_rows(y_SD: Tensor, weights_TJ: Tensor, rows: ExpertRows, *, backend: Backend | None = None) -> Tensor:
    """Return the weighted sum [T, D] over each token's experts; differentiable in both.

    Pairs without an expert count as zero, whatever their rows hold; the gradients of those rows are anything.
    """
    found: Tensor = _Combine.apply(y_SD, weights_TJ.contiguous(), rows, choose_backend(y_SD, backend=backend))
    return found


def adapted_product(
    x_SK: Tensor,
    weight_ENK: Tensor,
    rows: ExpertRows,
    *,
    factors: GroupedFactors | None,
    exact: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """Return each row's product [S, N] with its expert, and ``scale * (x A) B`` of its own adapter.

    Differentiable in ``x``; gradients of the factors go where ``factors`` says. Rows of no expert are anything.

    Args:
        exact: Whether a row's frozen product must have the same bits whichever rows share its expert, on a GPU, too.
    """
    chosen = choose_backend(x_SK, backend=backend)
    found: Tensor = _AdaptedProduct.apply(x_SK, weight_ENK, rows, factors, chosen, exact)
    return found


class _Spread(torch.autograd.Function):
    """``forward(x, rows, backend)``; the gradients of a token's pairs are summed in the order of its experts."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, rows: ExpertRows, backend: Backend) -> Tensor:
        ctx.rows, ctx.backend = rows, backend
        return x_TD.index_select(0, rows.token_S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx_SD: Tensor) -> tuple[Tensor | None, ...]:
        rows: ExpertRows = ctx.rows
        kernels = implementation("grouped_experts", ctx.backend)
        dx_TD: Tensor = kernels.combine(
            dx_SD.contiguous(), place_TJ=rows.place_TJ, weights_TJ=None, end_1=rows.ends_E[-1:]
        )
        return dx_TD, None, None


class _Combine(torch.autograd.Function):
    """``forward(y, weights, rows, backend)``."""

    @staticmethod
    def forward(ctx: Any, y_SD: Tensor, weights_TJ: Tensor, rows: ExpertRows, backend: Backend) -> Tensor:
        ctx.save_for_backward(y_SD, weights_TJ)
        ctx.rows, ctx.backend = rows, backend
        kernels = implementation("grouped_experts", backend)
        found: Tensor = kernels.combine(y_SD, place_TJ=rows.place_TJ, weights_TJ=weights_TJ, end_1=rows.ends_E[-1:])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor) -> tuple[Tensor | None, ...]:
        y_SD, weights_TJ = ctx.saved_tensors
        rows: ExpertRows = ctx.rows
        dy_SD, dweights_TJ = implementation("grouped_experts", ctx.backend).combine_backward(
            dy_TD.contiguous(), y_SN=y_SD, place_TJ=rows.place_TJ, weights_TJ=weights_TJ, end_1=rows.ends_E[-1:]
        )
        return dy_SD, dweights_TJ, None, None


class _AdaptedProduct(torch.autograd.Function):
    """``forward(x, weight, rows, factors, backend, exact)``; keeps ``x`` and the narrow product with A."""

    @staticmethod
    def forward(
        ctx: Any,
        x_SK: Tensor,
        weight_ENK: Tensor,
        rows: ExpertRows,
        factors: GroupedFactors | None,
        backend: Backend,
        exact: bool,  # noqa: FBT001 - autograd passes by place
    ) -> Tensor:
        ctx.weight_ENK, ctx.rows, ctx.factors, ctx.backend, ctx.exact = weight_ENK, rows, factors, backend, exact
        kernels = implementation("grouped_experts", backend)
        y_SN: Tensor = kernels.product(x_SK, weight_ENK, rows=rows, exact=exact)
        if factors is not None:
            groups = _groups(rows)
            x_SK = x_SK.contiguous()
            s_SR = kernels.shrink(x_SK, factor_REK=factors.a_REK, groups=groups)
            kernels.expand_into(y_SN, s_SR=s_SR, factor_REN=factors.b_REN, groups=groups)
            ctx.save_for_backward(x_SK, s_SR)
        return y_SN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_SN: Tensor) -> tuple[Tensor | None, ...]:
        rows: ExpertRows = ctx.rows
        factors: GroupedFactors | None = ctx.factors
        dy_SN = dy_SN.contiguous()
        kernels = implementation("grouped_experts", ctx.backend)
        dx_SK: Tensor | None = None
        if ctx.needs_input_grad[0]:
            dx_SK = kernels.product(dy_SN, ctx.weight_ENK.transpose(1, 2), rows=rows, exact=ctx.exact)
        if factors is not None:
            x_SK, s_SR = ctx.saved_tensors
            groups = _groups(rows)
            ds_SR = kernels.shrink(dy_SN, factor_REK=factors.b_REN, groups=groups)
            assert factors.grad_a_REK is not None, "a pass with gradients has sinks"
            assert factors.grad_b_REN is not None, "a pass with gradients has sinks"
            kernels.add_gradients(factors.grad_a_REK, s_SR=ds_SR, x_SK=x_SK, groups=groups)
            kernels.add_gradients(factors.grad_b_REN, s_SR=s_SR, x_SK=dy_SN, groups=groups)
            if dx_SK is not None:
                kernels.expand_into(dx_SK, s_SR=ds_SR, factor_REN=factors.a_REK, groups=groups)
        return dx_SK, None, None, None, None, None


def _groups(rows: ExpertRows) -> AdapterGroups:
    assert rows.adapters is not None, "factors need the groups of their slots"
    return rows.adapters
