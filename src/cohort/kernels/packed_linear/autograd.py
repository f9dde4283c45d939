"""The packed linear as one autograd node, over whichever path computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cohort.kernels.backend import Backend, implementation
from cohort.kernels.packed_linear.choice.augmented import PaddedRows
from cohort.kernels.packed_linear.frozen_product import FrozenProduct
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.per_sample import per_sample_backward, per_sample_forward
from cohort.kernels.packed_linear.tables import LoraPart, SlotTable
from cohort.kernels.segments import SegmentTable

__all__ = ["PackedLinearFunction"]


class PackedLinearFunction(torch.autograd.Function):
    """``forward(x, frozen, parts, slots, segments, row_keys, backend, tables, room, *factors)``.

    ``factors`` repeats every part's ``a_RK, b_RN`` so that autograd sees them; with sinks their gradients are added
    there and None is returned, without sinks they are returned.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_TK: Tensor,
        frozen: FrozenProduct,
        parts: Sequence[LoraPart],
        slots: SlotTable,
        segments: SegmentTable,
        row_keys_T: Tensor | None,
        backend: Backend,
        tables: LaunchTables | None,
        room: PaddedRows | None,
        *factors: Tensor,
    ) -> Tensor:
        """Compute y and keep what backward needs."""
        del factors  # autograd alone needs them; the parts hold the same tensors
        ctx.frozen, ctx.parts, ctx.slots, ctx.row_keys_T = frozen, parts, slots, row_keys_T
        if backend is Backend.TRITON:
            kernels = implementation("packed_linear", backend)
            ctx.tables = tables or kernels.launch_tables(segments, slots, x_TK.device)
            y_TN, s_PTC = kernels.grouped_forward(
                x_TK, frozen=frozen, parts=parts, tables=ctx.tables, row_keys_T=row_keys_T, room=room
            )
            ctx.save_for_backward(x_TK, s_PTC)
            ctx.grouped_backward = kernels.grouped_backward
            result: Tensor = y_TN
            return result
        ctx.tables = None
        # bits matter on the CPU alone; a GPU without Triton has fewer, larger products slot by slot
        ctx.segments = segments if x_TK.device.type == "cpu" else segments.by_slot()
        y_TN, kept = per_sample_forward(
            x_TK, frozen=frozen, parts=parts, slots=slots, segments=ctx.segments, row_keys_T=row_keys_T
        )
        ctx.save_for_backward(x_TK, *(s for intermediates in kept for s in intermediates))
        ctx.counts = [len(intermediates) for intermediates in kept]
        return y_TN

    @staticmethod
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        """Return dx, and the factors' gradients where the parts have no sinks."""
        owned = [part.grad_a_RK is None for part in ctx.parts]
        parts = [
            replace(part, grad_a_RK=torch.zeros_like(part.a_RK), grad_b_RN=torch.zeros_like(part.b_RN)) if own else part
            for part, own in zip(ctx.parts, owned, strict=True)
        ]
        dx_TK = _grouped_backward(ctx, dy_TN, parts) if ctx.tables is not None else _looped_backward(ctx, dy_TN, parts)
        gradients: list[Tensor | None] = []
        for part, own in zip(parts, owned, strict=True):
            gradients += [part.grad_a_RK, part.grad_b_RN] if own else [None, None]
        return (dx_TK if ctx.needs_input_grad[0] else None, *[None] * 8, *gradients)


def _grouped_backward(ctx: Any, dy_TN: Tensor, parts: Sequence[LoraPart]) -> Tensor | None:
    x_TK, s_PTC = ctx.saved_tensors
    dx_TK: Tensor | None = ctx.grouped_backward(
        dy_TN,
        x_TK=x_TK,
        s_PTC=s_PTC,
        frozen=ctx.frozen,
        parts=parts,
        tables=ctx.tables,
        row_keys_T=ctx.row_keys_T,
        with_dx=ctx.needs_input_grad[0],
    )
    return dx_TK


def _looped_backward(ctx: Any, dy_TN: Tensor, parts: Sequence[LoraPart]) -> Tensor:
    x_TK, *flat = ctx.saved_tensors
    kept, start = [], 0
    for count in ctx.counts:
        kept.append(flat[start : start + count])
        start += count
    return per_sample_backward(
        dy_TN,
        x_TK=x_TK,
        kept=kept,
        frozen=ctx.frozen,
        parts=parts,
        slots=ctx.slots,
        segments=ctx.segments,
        row_keys_T=ctx.row_keys_T,
    )
