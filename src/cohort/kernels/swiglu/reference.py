"""SwiGLU in plain torch.

By torch's own SiLU where it gives a row the same bits anywhere (:mod:`.whole_vectors`). At other widths those depend on
where the row stands in the tensor (vector body or scalar tail), which a packed row must not notice: there it is written
with ``exp``, which takes 2.3 times as long.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.kernels.deferred_lora_term import with_term
from cohort.kernels.fp8_product import CodeRoom, Fp8Rows, write_codes
from cohort.kernels.fp8_product.reference import quantise_rows
from cohort.kernels.swiglu.whole_vectors import row_pieces

__all__ = ["swiglu_backward", "swiglu_forward"]


def swiglu_forward(gate_up_TF: Tensor, *, term_TF: Tensor | None = None, codes: Fp8Rows | None = None) -> Tensor:
    """Return ``silu(gate) * up`` [T, F/2] of ``gate_up = [gate, up]``, plus the term where there is one."""
    gate, up = with_term(gate_up_TF, term_TF).to(torch.promote_types(gate_up_TF.dtype, torch.float32)).chunk(2, dim=-1)
    y = _silu(gate, out=torch.empty(gate.shape, dtype=gate.dtype, device=gate.device))
    y = y.mul_(up).to(gate_up_TF.dtype)
    if codes is not None:
        for place, found in zip((codes.codes_TK, codes.scales_T), quantise_rows(y), strict=True):
            place.copy_(found)
    return y


def swiglu_backward(dy_TF: Tensor, *, gate_up_TF: Tensor, room: CodeRoom | None = None) -> Tensor:
    """Return ``[dgate, dup]``; finite where ``exp(-gate)`` overflows, since it only enters through a reciprocal."""
    working = torch.promote_types(gate_up_TF.dtype, torch.float32)
    gate, up = gate_up_TF.to(working).chunk(2, dim=-1)
    dy = dy_TF.to(working)
    # each operation in a buffer that is there: fresh ones of this size are not in the caches
    written_TF = torch.empty(gate_up_TF.shape, dtype=working, device=gate_up_TF.device)
    dgate, dup = written_TF.chunk(2, dim=-1)
    torch.mul(dy, up, out=dgate)
    if (heights := row_pieces(gate)) is not None:
        _silu(gate, out=dup).mul_(dy)
        for rows, slope in zip(gate.split(heights), dgate.split(heights), strict=True):
            torch.ops.aten.silu_backward.grad_input(slope, rows, grad_input=slope)
    else:
        sigmoid = torch.neg(gate).exp_().add_(1).reciprocal_()
        torch.mul(gate, sigmoid, out=dup).mul_(dy)
        # silu grows by sigmoid times one more than gate times what sigmoid lacks to one
        dgate.mul_(sigmoid).mul_(sigmoid.neg_().add_(1).mul_(gate).add_(1))
    gradient_TF = written_TF.to(gate_up_TF.dtype)
    if room is not None:
        write_codes(gradient_TF, room)
    return gradient_TF


def _silu(gate_TW: Tensor, *, out: Tensor) -> Tensor:
    """Write ``gate / (1 + exp(-gate))`` to ``out``."""
    heights = row_pieces(gate_TW)
    if heights is None:
        torch.neg(gate_TW, out=out).exp_().add_(1)
        return torch.div(gate_TW, out, out=out)
    if len(heights) == 1:
        torch.ops.aten.silu.out(gate_TW, out=out)
        return out
    for rows, written in zip(gate_TW.split(heights), out.split(heights), strict=True):
        torch.ops.aten.silu.out(rows, out=written)
    return out
