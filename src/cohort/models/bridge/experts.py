"""Puts the product's own computation of experts in place of a model's, on the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cohort.kernels.gated_activation import Activation, gated_activation
from cohort.models.bridge.pass_state import current_pass
from cohort.models.bridge.structure import expert_blocks, expert_products
from cohort.models.experts.expert_block import ExpertBlock
from cohort.models.experts.stacked_weights import StackedWeights

__all__ = ["adapt_experts"]


def adapt_experts(model: nn.Module, layers: str) -> None:
    """Let each block of experts in the layers compute with the adapters of the pass; other blocks stay as they are.

    Outside a pass, and in one that asks for the model's own experts, a block computes what it did.
    """
    for path, module in expert_blocks(model, layers).items():
        module.forward = _in_passes(module.forward, _block(module, path))


def _block(module: Any, path: str) -> ExpertBlock:
    up, down = (_stacked(module, path, own) for own in expert_products(module))
    activation = module._apply_gate if module.has_gate else module.act_fn
    if module.has_gate and _is_gated_silu(activation, up):
        activation = _fused_on_gpus(activation)
    return ExpertBlock(up=up, down=down, activation=activation)


@torch.no_grad()
def _is_gated_silu(activation: Callable[[Tensor], Tensor], up: StackedWeights) -> bool:
    """Return whether gate and up stand side by side and nothing is done to them but ``silu(gate) * up``."""
    x_TN = 4 * torch.randn(4, up.out_features, generator=torch.Generator().manual_seed(0)).to(up.weight_ENK)
    try:
        found = activation(x_TN)
    except Exception:  # the model's own code, which may want other arguments
        return False
    expected = F.silu(x_TN[:, : up.out_features // 2]) * x_TN[:, up.out_features // 2 :]
    return found.shape == expected.shape and bool(torch.equal(found, expected))


def _fused_on_gpus(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x_TN: Tensor) -> Tensor:
        return gated_activation(x_TN, activation=Activation.SILU) if x_TN.is_cuda else activation(x_TN)

    return run


def _stacked(module: Any, path: str, own: str) -> StackedWeights:
    weight = getattr(module, own).detach()
    bias = getattr(module, f"{own}_bias").detach() if module.has_bias else None
    return StackedWeights(f"{path}.{own}", weight.transpose(1, 2) if module.is_transposed else weight, bias)


def _in_passes(forward: Callable[..., Tensor], block: ExpertBlock) -> Callable[..., Tensor]:
    @wraps(forward)
    def run(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        now = current_pass()
        if now is None or now.uses_own_experts:
            return forward(hidden_states, top_k_index, top_k_weights)
        rows_TD = hidden_states.reshape(-1, hidden_states.shape[-1])
        y_TD = block(rows_TD, top_k_index, top_k_weights, lora=now.lora, pads=now.attention is not None)
        return y_TD.view(hidden_states.shape)

    return run
