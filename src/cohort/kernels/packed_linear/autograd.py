"""The packed linear as one autograd node, over whichever path computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.per_sample import per_sample_backward, per_sample_forward
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["PackedLinearFunction"]


class PackedLinearFunction(torch.autograd.Function):
    """``forward(x, frozen, parts, slots, segments, row_keys, *factors)``.

    ``factors`` repeats every part's ``a_RK, b_RN`` so that autograd sees them; with sinks their gradients are added there
    and None is returned, without sinks they are returned.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x_TK: Tensor,
        frozen: FrozenProduct,
        parts: Sequence[LoraPart],
        slots: SlotTable,
        segments: SegmentTable,
        row_keys_T: Tensor | None,
        *factors: Tensor,
    ) -> Tensor:
        y_TN, kept = per_sample_forward(
            x_TK, frozen=frozen, parts=parts, slots=slots, segments=segments, row_keys_T=row_keys_T
        )
        ctx.save_for_backward(x_TK, *(s for intermediates in kept for s in intermediates))
        ctx.counts = [len(intermediates) for intermediates in kept]
        ctx.frozen, ctx.parts, ctx.slots, ctx.segments, ctx.row_keys_T = frozen, parts, slots, segments, row_keys_T
        return y_TN

    @staticmethod
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x_TK, *flat = ctx.saved_tensors
        kept, start = [], 0
        for count in ctx.counts:
            kept.append(flat[start : start + count])
            start += count
        owned = [part.grad_a_RK is None for part in ctx.parts]
        parts = [
            replace(part, grad_a_RK=torch.zeros_like(part.a_RK), grad_b_RN=torch.zeros_like(part.b_RN)) if own else part
            for part, own in zip(ctx.parts, owned)
        ]
        dx_TK = per_sample_backward(
            dy_TN,
            x_TK=x_TK,
            kept=kept,
            frozen=ctx.frozen,
            parts=parts,
            slots=ctx.slots,
            segments=ctx.segments,
            row_keys_T=ctx.row_keys_T,
        )
        gradients: list[Tensor | None] = []
        for part, own in zip(parts, owned):
            gradients += [part.grad_a_RK, part.grad_b_RN] if own else [None, None]
        return (dx_TK if ctx.needs_input_grad[0] else None, None, None, None, None, None, *gradients)
