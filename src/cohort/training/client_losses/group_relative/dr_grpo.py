"""Dr. GRPO (Liu et al. 2025): divided by a constant, so that a long wrong answer is not penalised less."""

from __future__ import annotations

from cohort.training.client_losses.group_relative.group_loss import (
    GroupLoss,
    clipped_surrogate,
    constant_share,
    policy_objective,
    token_log_ratios,
)

__all__ = ["GROUP_LOSS"]

GROUP_LOSS = GroupLoss(
    objective=policy_objective(
        "dr_grpo",
        summary="the clipped ratio of each token times the advantage, over answers times max_completion_length",
        log_ratios=token_log_ratios,
        surrogate=clipped_surrogate,
    ),
    share=constant_share,
)
