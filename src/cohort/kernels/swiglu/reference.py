"""SwiGLU in plain torch.

Written with ``exp`` rather than ``silu`` or ``sigmoid``: at some widths those give a row other last bits depending on
where it stands in the tensor (vector body or scalar tail), and a packed row must not notice its place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.kernels.apart import with_term

__all__ = ["swiglu_backward", "swiglu_forward"]


def swiglu_forward(gate_up_TF: Tensor, *, term_TF: Tensor | None = None) -> Tensor:
    """Return ``silu(gate) * up`` [T, F/2] of ``gate_up = [gate, up]``, plus the term where there is one."""
    gate, up = with_term(gate_up_TF, term_TF).to(torch.promote_types(gate_up_TF.dtype, torch.float32)).chunk(2, dim=-1)
    # gate / (1 + exp(-gate)) * up in one buffer
    y = torch.neg(gate).exp_().add_(1)
    torch.div(gate, y, out=y)
    return y.mul_(up).to(gate_up_TF.dtype)


def swiglu_backward(dy_TF: Tensor, *, gate_up_TF: Tensor) -> Tensor:
    """Return ``[dgate, dup]``; finite where ``exp(-gate)`` overflows, since it only enters through its reciprocal."""
    working = torch.promote_types(gate_up_TF.dtype, torch.float32)
    gate, up = gate_up_TF.to(working).chunk(2, dim=-1)
    dy = dy_TF.to(working)
    sigmoid = 1 / (1 + torch.exp(-gate))
    dgate = dy * up * sigmoid * (1 + gate * (1 - sigmoid))
    dup = dy * (gate * sigmoid)
    return torch.cat((dgate, dup), dim=-1).to(gate_up_TF.dtype)
