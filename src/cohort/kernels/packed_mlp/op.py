"""The public op: a whole feed-forward block for every adapter in a packed stream.

Fused it is one autograd node that keeps x, the frozen gate-and-up product and two thin S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.packed_linear import FrozenProduct, LaunchTables, LoraPart, SlotTable, packed_linear
from cohort.kernels.packed_linear.checks import check_parts, check_stream
from cohort.kernels.packed_linear.frozen_product import GivenGradient, can_take_codes, handed_gradient_of
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.segments import SegmentTable
from cohort.kernels.swiglu import swiglu

__all__ = ["NARROW_RANK", "WIDEST_FUSED_RANK", "fuses", "packed_mlp"]

# Up to here the gradient pass costs less than the passes it replaces.
NARROW_RANK = 32
# Above it the gradient pass has no registers left for its sums.
WIDEST_FUSED_RANK = 64


def packed_mlp(
    x_TD: Tensor,
    *,
    gate_up: FrozenProduct,
    gate_up_parts: Sequence[LoraPart],
    down: FrozenProduct,
    down_parts: Sequence[LoraPart],
    slots: SlotTable,
    segments: SegmentTable,
    row_keys_T: Tensor | None = None,
    tables: LaunchTables | RowTables | None = None,
    backend: Backend | None = None,
    fused: bool = True,
) -> Tensor:
    """Return ``down(silu(gate(x)) * up(x))`` [T, D], each product with every slot's LoRA term on that slot's rows.

    With ``fused``, and where :func:`fuses` says so, it is one node whose LoRA terms share the activation's passes;
    otherwise exactly ``packed_linear``, ``swiglu``, ``packed_linear``. Gradients flow to ``x`` and to each part's
    factors (into its sinks where it has them).

    Args:
        x_TD: The stream [T, D].
        gate_up: The fused frozen product, gate's rows above up's, [2F, D].
        gate_up_parts: Stacked factors of gate and up, or of those that are adapted.
        down: The frozen product [D, F].
        down_parts: Stacked factors of down, empty where it is not adapted.
        row_keys_T: int64 [T] dropout keys; None in evaluation, where nothing is dropped.
        tables: Device tables of ``segments`` and ``slots``; built on demand when None.
        backend: Triton's kernels or plain torch; by default what :mod:`cohort.kernels.backend` says of ``x``.
        fused: Take the fused kernels where they are worth it.

    Raises:
        ShapeError: a width disagrees with its neighbour.
        SegmentError: ``segments`` covers another number of rows or slots.
    """
    if gate_up.out_features != 2 * down.in_features:
        raise ShapeError(
            f"gate and up are {gate_up.out_features} wide together but down takes {down.in_features}: expected twice it"
        )
    chosen = choose_backend(x_TD, backend=backend)
    suits = fuses(x_TD, gate_up_parts=gate_up_parts, down_parts=down_parts, slots=slots)
    # row by row there is no stream long enough for the fused kernels
    if not fused or chosen is not Backend.TRITON or not suits or isinstance(tables, RowTables):
        gate_up_TF = packed_linear(
            x_TD,
            frozen=gate_up,
            parts=gate_up_parts,
            slots=slots,
            segments=segments,
            row_keys_T=row_keys_T,
            tables=tables,
            backend=backend,
        )
        room = down.code_room(gate_up_TF) if can_take_codes(down) else None
        return packed_linear(
            swiglu(gate_up_TF, codes=room, backend=backend),
            frozen=down if room is None or not can_take_codes(down) else down.reading(room),
            parts=down_parts,
            slots=slots,
            segments=segments,
            row_keys_T=row_keys_T,
            tables=tables,
            backend=backend,
        )
    check_stream(x_TD, frozen=gate_up, slots=slots, segments=segments, tables=tables, row_keys_T=row_keys_T)
    for frozen, own in ((gate_up, gate_up_parts), (down, down_parts)):
        check_parts(own, x_TK=x_TD, frozen=frozen, slots=slots)
        _check_width(own, frozen=frozen)
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    parts = (*gate_up_parts, *down_parts)
    tables = tables or implementation("packed_linear", chosen).launch_tables(segments, slots, x_TD.device)
    factors = [factor for part in parts for factor in (part.a_RK, part.b_RN)]
    result: Tensor = _PackedMlpFunction.apply(x_TD, gate_up, down, *parts, tables, row_keys_T, *factors)
    return result


def fuses(x_TD: Tensor, *, gate_up_parts: Sequence[LoraPart], down_parts: Sequence[LoraPart], slots: SlotTable) -> bool:
    """Return whether the fused kernels are worth it for this pack.

    They are in 16 bits, when gate, up and down are all adapted, no rank is above :data:`WIDEST_FUSED_RANK` and at
    most a third of the adapters is above :data:`NARROW_RANK`. The README has the measurements behind both numbers.
    """
    ranks = [rank for rank in slots.ranks if rank > 0]
    num_wide = sum(rank > NARROW_RANK for rank in ranks)
    adapted = len(gate_up_parts) == 2 and len(down_parts) == 1 and not any(part.first_feature for part in down_parts)
    suits = max(ranks, default=0) <= WIDEST_FUSED_RANK and 3 * num_wide <= len(ranks)
    return adapted and suits and x_TD.element_size() == 2


def _check_width(parts: Sequence[LoraPart], *, frozen: FrozenProduct) -> None:
    width = sum(part.b_RN.shape[1] for part in parts)
    if width != frozen.out_features:
        raise ShapeError(f"the parts are {width} wide together but their frozen linear {frozen.out_features}")


class _PackedMlpFunction(torch.autograd.Function):
    """``forward(x, gate_up, down, gate, up, down_part, tables, row_keys, *factors)``.

    ``factors`` repeats ``a_RK, b_RN`` of gate, up and down so that autograd sees them; with sinks their gradients are
    added there and None is returned, without sinks they are returned.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        gate_up: FrozenProduct,
        down: FrozenProduct,
        gate: LoraPart,
        up: LoraPart,
        down_part: LoraPart,
        tables: LaunchTables,
        row_keys_T: Tensor | None,
        *factors: Tensor,
    ) -> Tensor:
        del factors  # autograd alone needs them; the parts hold the same tensors
        ctx.gate_up, ctx.down, ctx.parts = gate_up, down, (gate, up, down_part)
        ctx.tables, ctx.row_keys_T = tables, row_keys_T
        ctx.handed_gradient = handed_gradient_of(down)
        y_TD, kept = implementation("packed_mlp", Backend.TRITON).mlp_forward(
            x_TD,
            gate_up=gate_up,
            gate_up_parts=(gate, up),
            down=down,
            down_part=down_part,
            tables=tables,
            row_keys_T=row_keys_T,
        )
        ctx.save_for_backward(x_TD, *kept)
        result: Tensor = y_TD
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TD: Tensor) -> tuple[Tensor | None, ...]:
        owned = [part.grad_a_RK is None for part in ctx.parts]
        gate, up, down_part = parts = [
            _with_sinks(part) if own else part for part, own in zip(ctx.parts, owned, strict=True)
        ]
        x_TD, g_TF, s_PTC, s_down_PTC = ctx.saved_tensors
        dx_TD: Tensor | None = implementation("packed_mlp", Backend.TRITON).mlp_backward(
            dy_TD,
            x_TD=x_TD,
            g_TF=g_TF,
            s_PTC=s_PTC,
            s_down_PTC=s_down_PTC,
            gate_up=ctx.gate_up,
            gate_up_parts=(gate, up),
            down=GivenGradient.of(ctx.down, ctx.handed_gradient, dy_TD),
            down_part=down_part,
            tables=ctx.tables,
            row_keys_T=ctx.row_keys_T,
            with_dx=ctx.needs_input_grad[0],
        )
        gradients: list[Tensor | None] = []
        for part, own in zip(parts, owned, strict=True):
            for factor, sink in ((part.a_RK, part.grad_a_RK), (part.b_RN, part.grad_b_RN)):
                gradients.append(sink.to(factor.dtype) if own and sink is not None else None)
        return (dx_TD, *[None] * 7, *gradients)


def _with_sinks(part: LoraPart) -> LoraPart:
    """Give ``part`` sinks of its own, float32 because several chunks of a slot add to them."""
    a, b = (torch.zeros_like(factor, dtype=torch.float32) for factor in (part.a_RK, part.b_RN))
    return replace(part, grad_a_RK=a, grad_b_RN=b)
