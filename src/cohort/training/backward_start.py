"""Where a backward pass begins with given gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["seeded"]


class _Seeded(torch.autograd.Function):
    """A scalar whose gradient with respect to ``outputs`` is ``gradients``, bit for bit."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, gradients: Tensor) -> Tensor:
        ctx.save_for_backward(gradients)
        return outputs.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        (gradients,) = ctx.saved_tensors
        return gradients, None


def seeded(outputs: Tensor, gradients: Tensor) -> Tensor:
    """Return a scalar: ``seeded(outputs, gradients).backward()`` does what ``outputs.backward(gradients)`` does.

    torch checks gradients that are given against symbolic shapes, and imports sympy and half of its tracing for that:
    one to two seconds before the first step. It checks no scalar.

    Args:
        outputs: What is differentiated, of any shape.
        gradients: The gradient of each output, of the same shape and dtype.
    """
    scalar: Tensor = _Seeded.apply(outputs, gradients)
    return scalar
