"""The fused feed-forward block as one autograd node; keeps x, the frozen gate-and-up product and two thin S."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.backend import Backend, implementation
from cohort.kernels.packed_linear import FrozenProduct, LaunchTables, LoraPart

__all__ = ["PackedMlpFunction"]


class PackedMlpFunction(torch.autograd.Function):
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
        """Compute y and keep what backward needs."""
        del factors  # autograd alone needs them; the parts hold the same tensors
        ctx.gate_up, ctx.down, ctx.parts = gate_up, down, (gate, up, down_part)
        ctx.tables, ctx.row_keys_T = tables, row_keys_T
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
        """Return dx, and the factors' gradients where the parts have no sinks."""
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
            down=ctx.down,
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
