"""Linears of one input and one adapter, without dropout: plain products, few launches, one autograd node.

The grouped kernels of the packed linear serve many adapters in one stream; for one, their tables cost a host more than
they save. PEFT makes some seven launches a linear and adds its term in float32; here siblings share the product with A,
and each term is added onto its output by the product with B.

Shapes:  T rows of the input · K input width · N output width of one linear · r rank · R ranks of all siblings
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["AddingProduct", "one_adapter"]


class AddingProduct(Protocol):
    """A frozen product whose gradient is added to one that is there."""

    def forward(self, x_TK: Tensor) -> Tensor:
        """Return a new y [T, N]; outside autograd."""
        ...

    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        """Add dy W to dx in place."""
        ...


def one_adapter(
    x_TK: Tensor, *, products: Sequence[AddingProduct], factors: Sequence[Tensor], scale: float
) -> tuple[Tensor, ...]:
    """Return ``x W^T (+ bias) + scale * x A^T B^T`` of each linear.

    Args:
        products: The frozen products, which read and write ``x``'s dtype.
        factors: A [r, K] and B [N, r] of each linear in turn, of one rank. All A, and all B, are of one dtype, which
            may be another one.
    """
    found: tuple[Tensor, ...] = _OneAdapter.apply(x_TK, tuple(products), scale, *factors)
    return found


class _OneAdapter(torch.autograd.Function):
    """``forward(x, products, scale, *factors)``."""

    @staticmethod
    def forward(
        ctx: Any, x_TK: Tensor, products: Sequence[AddingProduct], scale: float, *factors: Tensor
    ) -> tuple[Tensor, ...]:
        a_rows = factors[::2]
        a_RK = (a_rows[0] if len(a_rows) == 1 else torch.cat(a_rows)).to(x_TK.dtype)
        b_s = [b_Nr.to(x_TK.dtype) for b_Nr in factors[1::2]]
        r = a_rows[0].shape[0]
        s_TR = torch.mm(x_TK, a_RK.t()).mul_(scale)
        outputs = []
        for place, (product, b_Nr) in enumerate(zip(products, b_s, strict=True)):
            y_TN = product.forward(x_TK)
            outputs.append(y_TN.addmm_(s_TR[:, place * r : (place + 1) * r], b_Nr.t()))
        ctx.save_for_backward(x_TK, s_TR, a_RK, *b_s)
        ctx.products, ctx.scale, ctx.dtypes = products, scale, [factor.dtype for factor in factors[:2]]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *dy_s: Tensor) -> tuple[Tensor | None, ...]:
        x_TK, s_TR, a_RK, *b_s = ctx.saved_tensors
        r = a_RK.shape[0] // len(b_s)
        ds = [torch.mm(dy_TN, b_Nr) for dy_TN, b_Nr in zip(dy_s, b_s, strict=True)]
        ds_TR = (ds[0] if len(ds) == 1 else torch.cat(ds, dim=1)).mul_(ctx.scale)
        da_RK = torch.mm(ds_TR.t(), x_TK).to(ctx.dtypes[0])
        gradients: list[Tensor | None] = [None, None, None]
        for place, dy_TN in enumerate(dy_s):
            rows = slice(place * r, (place + 1) * r)
            gradients.append(da_RK[rows])
            gradients.append(torch.mm(dy_TN.t(), s_TR[:, rows]).to(ctx.dtypes[1]))
        if ctx.needs_input_grad[0]:
            dx_TK = torch.mm(ds_TR, a_RK)
            for product, dy_TN in zip(ctx.products, dy_s, strict=True):
                product.add_grad_input(dy_TN, dx_TK)
            gradients[0] = dx_TK
        return tuple(gradients)
