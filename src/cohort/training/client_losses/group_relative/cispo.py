"""CISPO (MiniMax-M1, 2025): the ratio up to ``epsilon_high`` is a constant weight, so no token loses its gradient."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cohort.training.client_losses.group_relative.group_loss import (
    GroupLoss,
    policy_objective,
    token_log_ratios,
    token_share,
)

__all__ = ["GROUP_LOSS"]


def _surrogate(ratio_M: Tensor, logps_M: Tensor, advantages_M: Tensor, numbers: Mapping[str, float]) -> Tensor:
    most = numbers["epsilon_high"] or numbers["epsilon"]
    return -ratio_M.clamp(max=most).detach() * advantages_M * logps_M


GROUP_LOSS = GroupLoss(
    objective=policy_objective(
        "cispo",
        summary="-log p times the advantage, weighted by the ratio up to epsilon_high, the mean of all tokens",
        log_ratios=token_log_ratios,
        surrogate=_surrogate,
    ),
    share=token_share,
    bounds_ratio=True,
)
