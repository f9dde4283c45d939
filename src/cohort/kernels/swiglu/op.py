"""The public op: the gated activation over a fused gate-and-up product. Its autograd node keeps its input alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.deferred_lora_term import check_term
from cohort.kernels.fp8_product import Fp8Rows, handed_behind

__all__ = ["swiglu"]


def swiglu(
    gate_up_TF: Tensor,
    *,
    term_TF: Tensor | None = None,
    codes: Fp8Rows | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Return ``silu(gate) * up`` [T, F/2], where ``gate_up = [gate, up]`` side by side; differentiable.

    Args:
        term_TF: float32 [T, F], contiguous: added to gate and up first, which are rounded as if they had been stored.
            Outside autograd.
        codes: Where the result is written in e4m3 as well, as ``quantise_rows`` rounds it, in the same pass.

    Raises:
        ShapeError: the last axis is odd, the term or the codes have another shape, or there is a term and codes.
    """
    if gate_up_TF.ndim != 2 or gate_up_TF.shape[1] % 2:
        raise ShapeError(f"gate and up side by side must be [T, F] with F even, got {tuple(gate_up_TF.shape)}")
    chosen = choose_backend(gate_up_TF, backend=backend)
    shape = (gate_up_TF.shape[0], gate_up_TF.shape[1] // 2)
    if codes is not None and codes.codes_TK.shape != shape:
        raise ShapeError(f"codes are {tuple(codes.codes_TK.shape)}; the result is {shape}")
    if codes is not None and term_TF is not None:
        raise ShapeError("codes with a term: a pass that adds a term writes no codes; leave one of them out")
    if term_TF is not None:
        check_term(gate_up_TF, term_TF)
        summed: Tensor = implementation("swiglu", chosen).swiglu_forward(gate_up_TF, term_TF=term_TF)
        return summed
    if not torch.is_grad_enabled():
        # a node of autograd takes as long as a few rows
        alone: Tensor = implementation("swiglu", chosen).swiglu_forward(gate_up_TF, codes=codes)
        return alone
    result: Tensor = _SwigluFunction.apply(gate_up_TF, chosen, codes)
    return result


class _SwigluFunction(torch.autograd.Function):
    """``forward(gate_up, backend, codes) -> y``."""

    @staticmethod
    def forward(ctx: Any, gate_up_TF: Tensor, backend: Backend, codes: Fp8Rows | None) -> Tensor:
        ctx.save_for_backward(gate_up_TF)
        ctx.backend = backend
        y_TF: Tensor = implementation("swiglu", backend).swiglu_forward(gate_up_TF, codes=codes)
        return y_TF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TF: Tensor) -> tuple[Tensor | None, ...]:
        (gate_up_TF,) = ctx.saved_tensors
        handed = handed_behind(ctx)
        room = None if handed is None else handed.room(gate_up_TF, width=gate_up_TF.shape[1])
        kernels = implementation("swiglu", ctx.backend)
        gradient_TF: Tensor = kernels.swiglu_backward(dy_TF, gate_up_TF=gate_up_TF, room=room)
        if handed is not None and room is not None:
            handed.hand(gradient_TF, room)
        return gradient_TF, None, None
