"""REINFORCE++ (Hu et al. 2025): PPO's clipped loss without a critic, advantages from all answers of the step.

The KL to the reference is part of the loss, as in the other losses here, and not of the reward.
"""

from __future__ import annotations

from cohort.training.client_losses.group_relative.advantages import batch_advantages
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
        "reinforce_plus_plus",
        summary="the clipped ratio of each token times the reward's distance from the step's mean, in deviations",
        log_ratios=token_log_ratios,
        surrogate=clipped_surrogate,
    ),
    share=token_share,
    advantages=batch_advantages,
)
