"""The public op: rotate queries and keys by their positions. Being linear, its autograd node keeps only the angles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.deferred_lora_term import check_term
from cohort.kernels.fp8_product import handed_behind

__all__ = ["apply_rope", "split_and_rotate"]


def apply_rope(
    q_THE: Tensor, k_TGE: Tensor, *, cos_TE: Tensor, sin_TE: Tensor, backend: Backend | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(q, k)`` with ``x * cos + [-x2, x1] * sin`` over the last axis, x1 and x2 being its halves.

    Differentiable in ``q`` and ``k``. They may be views into one fused product: any strides of the first two axes.

    Args:
        q_THE: Queries [T, query heads, E].
        k_TGE: Keys [T, key-value heads, E].
        cos_TE: Cosines of each row's angles, both halves written out as transformers does.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: heads and angles disagree in width or rows, or the width is odd.
    """
    num_rows, width = q_THE.shape[0], q_THE.shape[-1]
    if q_THE.ndim != 3 or k_TGE.ndim != 3 or k_TGE.shape[0] != num_rows or k_TGE.shape[-1] != width:
        raise ShapeError(f"queries {tuple(q_THE.shape)} and keys {tuple(k_TGE.shape)} must be [T, H, E] and [T, G, E]")
    if cos_TE.shape != (num_rows, width) or sin_TE.shape != (num_rows, width) or width % 2:
        raise ShapeError(
            f"cos {tuple(cos_TE.shape)} and sin {tuple(sin_TE.shape)} must be [{num_rows}, {width}], the width even"
        )
    result: tuple[Tensor, Tensor] = _RopeFunction.apply(
        q_THE, k_TGE, cos_TE, sin_TE, choose_backend(q_THE, backend=backend)
    )
    return result


def split_and_rotate(
    qkv_TN: Tensor,
    *,
    heads: tuple[int, int],
    cos_TE: Tensor,
    sin_TE: Tensor,
    term_TN: Tensor | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [T, H, E] and keys [T, G, E], rotated as :func:`apply_rope` does, and values [T, G, E].

    Differentiable in ``qkv``, whose gradient is written at once: split apart, autograd would copy its three pieces
    together again.

    Args:
        qkv_TN: The fused product [T, (H + 2 G) E].
        heads: H and G.
        term_TN: float32, contiguous, of the product's shape: added to it first, and the sum rounded as if it had been
            stored. Outside autograd.

    Raises:
        ShapeError: the product is not as wide as its heads, or the angles or the term do not fit it.
    """
    (num_heads, num_kv_heads), (num_rows, width) = heads, cos_TE.shape
    if qkv_TN.shape != (num_rows, (num_heads + 2 * num_kv_heads) * width) or sin_TE.shape != cos_TE.shape or width % 2:
        raise ShapeError(
            f"a fused product {tuple(qkv_TN.shape)} of {num_heads} + 2 x {num_kv_heads} heads does not fit cos "
            f"{tuple(cos_TE.shape)} and sin {tuple(sin_TE.shape)}; the width must be even"
        )
    chosen = choose_backend(qkv_TN, backend=backend)
    if term_TN is not None:
        check_term(qkv_TN, term_TN)
        parts: tuple[Tensor, Tensor, Tensor] = implementation("rope", chosen).fused_forward(
            qkv_TN, heads=heads, cos_TE=cos_TE, sin_TE=sin_TE, term_TN=term_TN
        )
        return parts
    if chosen is Backend.REFERENCE and not torch.is_grad_enabled():
        # a node of autograd takes as long as a few rows
        alone: tuple[Tensor, Tensor, Tensor] = implementation("rope", chosen).fused_forward(
            qkv_TN, heads=heads, cos_TE=cos_TE, sin_TE=sin_TE
        )
        return alone
    result: tuple[Tensor, Tensor, Tensor] = _FusedFunction.apply(qkv_TN, heads, cos_TE, sin_TE, chosen)
    return result


class _FusedFunction(torch.autograd.Function):
    """``forward(qkv, heads, cos, sin, backend) -> (q, k, v)``."""

    @staticmethod
    def forward(
        ctx: Any, qkv_TN: Tensor, heads: tuple[int, int], cos_TE: Tensor, sin_TE: Tensor, backend: Backend
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos_TE, sin_TE)
        ctx.backend = backend
        kernels = implementation("rope", backend)
        if backend is Backend.REFERENCE:
            both: tuple[Tensor, Tensor, Tensor] = kernels.fused_forward(
                qkv_TN, heads=heads, cos_TE=cos_TE, sin_TE=sin_TE
            )
            return both
        parts = qkv_TN.unflatten(1, (-1, cos_TE.shape[1])).split((heads[0], heads[1], heads[1]), dim=1)
        q_THE, k_TGE = kernels.rope_forward(*parts[:2], cos_TE=cos_TE, sin_TE=sin_TE)
        return q_THE, k_TGE, parts[2]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_THE: Tensor, dk_TGE: Tensor, dv_TGE: Tensor) -> tuple[Tensor | None, ...]:
        cos_TE, sin_TE = ctx.saved_tensors
        handed = handed_behind(ctx)
        width = (dq_THE.shape[1] + 2 * dk_TGE.shape[1]) * dq_THE.shape[2]
        room = None if handed is None else handed.room(dq_THE, width=width)
        dqkv_TN = implementation("rope", ctx.backend).fused_backward(
            dq_THE, dk_TGE, dv_TGE, cos_TE=cos_TE, sin_TE=sin_TE, room=room
        )
        if handed is not None and room is not None:
            handed.hand(dqkv_TN, room)
        return dqkv_TN, *[None] * 4


class _RopeFunction(torch.autograd.Function):
    """``forward(q, k, cos, sin, backend) -> (q, k)``."""

    @staticmethod
    def forward(
        ctx: Any, q_THE: Tensor, k_TGE: Tensor, cos_TE: Tensor, sin_TE: Tensor, backend: Backend
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos_TE, sin_TE)
        ctx.backend = backend
        q_rotated_THE, k_rotated_TGE = implementation("rope", backend).rope_forward(
            q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE
        )
        return q_rotated_THE, k_rotated_TGE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_THE: Tensor, dk_TGE: Tensor) -> tuple[Tensor | None, ...]:
        cos_TE, sin_TE = ctx.saved_tensors
        dq, dk = implementation("rope", ctx.backend).rope_backward(dq_THE, dk_TGE, cos_TE=cos_TE, sin_TE=sin_TE)
        return dq, dk, None, None, None
