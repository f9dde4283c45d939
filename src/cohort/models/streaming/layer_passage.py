"""Tells the ring when the stream enters and leaves a streamed layer, forward and backward.

Two identity nodes stand around a layer, and both streams (residual and delta) pass through both. So the backward pass
leaves the second node before any product of the layer reads its weights, and enters the first one after all of them.
With gradient checkpointing the nodes stand outside: the layer is computed again between them.

Shapes:  T rows of the stream · D hidden width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cohort.models.streaming.weight_ring import WeightRing

__all__ = ["enter_layer", "leave_layer"]


def enter_layer(
    ring: WeightRing, layer: int, residual_TD: Tensor, delta_TD: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Wait for the layer's weights and return the same streams; the backward pass gives its buffer free here."""
    ring.need(layer)
    if not _is_differentiable(residual_TD, delta_TD):
        return residual_TD, delta_TD
    if delta_TD is None:
        return _Enter.apply(ring, layer, residual_TD)[0], None
    entered: tuple[Tensor, Tensor] = _Enter.apply(ring, layer, residual_TD, delta_TD)
    return entered


def leave_layer(ring: WeightRing, layer: int, residual_TD: Tensor, delta_TD: Tensor) -> tuple[Tensor, Tensor]:
    """Give the layer's buffer free and return the same streams; the backward pass waits here for its weights."""
    returns = _is_differentiable(residual_TD, delta_TD)
    ring.done(layer, backward=False, returns=returns)
    if not returns:
        return residual_TD, delta_TD
    left: tuple[Tensor, Tensor] = _Leave.apply(ring, layer, residual_TD, delta_TD)
    return left


def _is_differentiable(residual_TD: Tensor, delta_TD: Tensor | None) -> bool:
    wants = residual_TD.requires_grad or (delta_TD is not None and delta_TD.requires_grad)
    return torch.is_grad_enabled() and wants


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ring: WeightRing, layer: int, *streams: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.ring, ctx.layer = ring, layer
        return tuple(stream.view_as(stream) for stream in streams)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        ctx.ring.done(ctx.layer, backward=True)
        return None, None, *grads


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ring: WeightRing, layer: int, *streams: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.ring, ctx.layer = ring, layer
        return tuple(stream.view_as(stream) for stream in streams)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        ctx.ring.need(ctx.layer)
        return None, None, *grads
