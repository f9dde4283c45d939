"""RLOO (Ahmadian et al. 2024): REINFORCE with the mean of the other answers as the baseline, one ratio an answer.

As in TRL's RLOOTrainer the ratio of an answer is the product of its tokens' ratios, clipped as in PPO.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.training.client_losses.group_relative.advantages import leave_one_out_advantages
from cohort.training.client_losses.group_relative.group_loss import (
    GroupLoss,
    answer_share,
    clipped_surrogate,
    policy_objective,
)

__all__ = ["GROUP_LOSS"]


def _log_ratios(log_ratios_M: Tensor, counts_M: Tensor, offsets: Sequence[int]) -> Tensor:
    # those of targets that do not count are 0
    del counts_M
    sizes = [stop - start for start, stop in itertools.pairwise(offsets)]
    return torch.cat([own.sum().expand(len(own)) for own in log_ratios_M.split(sizes)])


GROUP_LOSS = GroupLoss(
    objective=policy_objective(
        "rloo",
        summary="the clipped ratio of each answer times what it was rewarded more than the other answers",
        log_ratios=_log_ratios,
        surrogate=clipped_surrogate,
    ),
    share=answer_share,
    advantages=leave_one_out_advantages,
    log_ratios=_log_ratios,
)
