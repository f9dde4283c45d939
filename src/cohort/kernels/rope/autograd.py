"""Rotary embedding as an autograd node: linear, so it keeps only the angles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.backend import Backend, implementation

__all__ = ["RopeFunction"]


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
