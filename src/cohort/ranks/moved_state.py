"""A trial's state, or its weights, on another device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cohort.training.trial import TrialState

__all__ = ["on_host", "state_on"]


def state_on(state: TrialState, device: torch.device, *, copies: bool = False) -> TrialState:
    """Return a state whose tensors of another GPU are on ``device``; those of the host stay there.

    Args:
        copies: Copy also what is on ``device``.
    """

    def moved(tensor: Tensor) -> Tensor:
        return tensor.to(device, copy=copies) if tensor.is_cuda else tensor

    moments = {name: moved(moment) for name, moment in state.adapter.moments.items()}
    return replace(state, adapter=replace(state.adapter, weights=moved(state.adapter.weights), moments=moments))


def on_host(value: Any) -> Any:
    """Return a state or a tensor on the host, and anything else as it is."""
    if isinstance(value, TrialState):
        return state_on(value, torch.device("cpu"))
    return value.cpu() if isinstance(value, Tensor) else value
