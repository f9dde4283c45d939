"""GSPO (Zheng et al. 2025, equation 5): one importance ratio for a whole answer, the mean of its tokens' logarithms.

In TRL this is ``importance_sampling_level="sequence"`` with ``loss_type="grpo"``. The loss of that name among the
objectives of clients is GSPO-token: it has the same value, and the gradient of a
token goes through that token alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.training.client_losses.group_relative.group_loss import (
    GroupLoss,
    answer_share,
    clipped_surrogate,
    policy_objective,
)
from cohort.training.client_losses.token_objective import datum_means

__all__ = ["GROUP_LOSS"]


def _log_ratios(log_ratios_M: Tensor, counts_M: Tensor, offsets: Sequence[int]) -> Tensor:
    return datum_means(log_ratios_M, mask_M=counts_M.to(log_ratios_M.dtype), offsets=offsets)


GROUP_LOSS = GroupLoss(
    objective=policy_objective(
        "gspo",
        summary="the clipped ratio of each answer times the advantage, the mean of the answers",
        log_ratios=_log_ratios,
        surrogate=clipped_surrogate,
    ),
    share=answer_share,
    log_ratios=_log_ratios,
)
