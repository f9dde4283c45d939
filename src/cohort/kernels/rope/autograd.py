"""Rotary embedding as an autograd node: linear, so it keeps only the angles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.backend import Backend, implementation

__all__ = ["RopeFunction", "SplitRopeFunction"]


class RopeFunction(torch.autograd.Function):
    """``forward(q, k, cos, sin, backend) -> (q, k)``."""

    @staticmethod
    def forward(
        ctx: Any, q_THE: Tensor, k_TGE: Tensor, cos_TE: Tensor, sin_TE: Tensor, backend: Backend
    ) -> tuple[Tensor, Tensor]:
        """Compute and keep what backward needs."""
        ctx.save_for_backward(cos_TE, sin_TE)
        ctx.backend = backend
        q_rotated_THE, k_rotated_TGE = implementation("rope", backend).rope_forward(
            q_THE, k_TGE, cos_TE=cos_TE, sin_TE=sin_TE
        )
        return q_rotated_THE, k_rotated_TGE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_THE: Tensor, dk_TGE: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient per argument of forward."""
        cos_TE, sin_TE = ctx.saved_tensors
        dq, dk = implementation("rope", ctx.backend).rope_backward(dq_THE, dk_TGE, cos_TE=cos_TE, sin_TE=sin_TE)
        return dq, dk, None, None, None


class SplitRopeFunction(torch.autograd.Function):
    """``forward(qkv, num_heads, num_kv_heads, cos, sin, rows, places, backend) -> (q, k, v)``."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_TF: Tensor,
        num_heads: int,
        num_kv_heads: int,
        cos_TE: Tensor,
        sin_TE: Tensor,
        rows_P: Tensor | None,
        places_T: Tensor | None,
        backend: Backend,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute and keep what backward needs."""
        ctx.save_for_backward(cos_TE, sin_TE, places_T)
        ctx.backend = backend
        q_PHE, k_PGE, v_PGE = implementation("rope", backend).split_rope_forward(
            qkv_TF, num_heads=num_heads, num_kv_heads=num_kv_heads, cos_TE=cos_TE, sin_TE=sin_TE, rows_P=rows_P
        )
        return q_PHE, k_PGE, v_PGE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq_PHE: Tensor, dk_PGE: Tensor, dv_PGE: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient per argument of forward."""
        cos_TE, sin_TE, places_T = ctx.saved_tensors
        dqkv_TF = implementation("rope", ctx.backend).split_rope_backward(
            dq_PHE, dk_PGE, dv_PGE, cos_TE=cos_TE, sin_TE=sin_TE, places_T=places_T
        )
        return dqkv_TF, None, None, None, None, None, None, None
