"""The borders of a divided block: the pair of functions whose gradients are each other's (Megatron's f and g)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cohort.ranks.tensor.groups import RankGroup

__all__ = ["Region"]


class Region:
    """Joins the ranks of ``group`` around attention and MLP: one all-reduce forward and one backward for each."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def enter(self, x_TD: Tensor) -> Tensor:
        if self._group.size == 1 or not torch.is_grad_enabled():
            return x_TD
        entered: Tensor = _Enter.apply(x_TD, self._group)
        return entered

    def leave(self, y_TD: Tensor) -> Tensor:
        if self._group.size == 1:
            return y_TD
        if not torch.is_grad_enabled():
            # no one else reads it: the sum may take its place
            return self._group.all_reduce(y_TD)
        left: Tensor = _Leave.apply(y_TD, self._group)
        return left


class _Enter(torch.autograd.Function):
    """``forward(x, group)``: x; backward the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, group: RankGroup) -> Tensor:
        ctx.group = group
        return x_TD.view_as(x_TD)

    @staticmethod
    def backward(ctx: Any, dx_TD: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(dx_TD.clone()), None


class _Leave(torch.autograd.Function):
    """``forward(y, group)``: the sum over ranks; backward the gradient itself."""

    @staticmethod
    def forward(ctx: Any, y_TD: Tensor, group: RankGroup) -> Tensor:
        del ctx
        return group.all_reduce(y_TD.clone())

    @staticmethod
    def backward(ctx: Any, dy_TD: Tensor) -> tuple[Tensor, None]:
        del ctx
        return dy_TD, None
