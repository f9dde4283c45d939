"""GRPO (Shao et al. 2024): the mean over an answer's tokens, then over the answers."""

from __future__ import annotations

from cohort.training.client_losses.group_relative.group_loss import (
    GroupLoss,
    answer_share,
    clipped_surrogate,
    policy_objective,
    token_log_ratios,
)

__all__ = ["GROUP_LOSS"]

GROUP_LOSS = GroupLoss(
    objective=policy_objective(
        "grpo",
        summary="the clipped ratio of each token times the advantage, the mean of each answer",
        log_ratios=token_log_ratios,
        surrogate=clipped_surrogate,
    ),
    share=answer_share,
)
