"""DAPO (Yu et al. 2025): every token of the optimizer step counts the same, in a long answer or a short one."""

from __future__ import annotations

from cohort.training.client_losses.group_relative.group_loss import (
    GroupLoss,
    clipped_surrogate,
    policy_objective,
    token_log_ratios,
    token_share,
)

__all__ = ["GROUP_LOSS"]

GROUP_LOSS = GroupLoss(
    objective=policy_objective(
        "dapo",
        summary="the clipped ratio of each token times the advantage, the mean of all tokens",
        log_ratios=token_log_ratios,
        surrogate=clipped_surrogate,
    ),
    share=token_share,
)
