"""Contrastive preference optimization: the margin between two answers, without a reference, and the better one learned.

Source: Xu et al. 2024, eq. 3 and 6, with the loss types of TRL's ``CPOTrainer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cohort.data.tokenised import Sample
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.pair_losses import pair_loss, reward_metrics

__all__ = ["OBJECTIVE", "ContrastivePreferenceOptimization"]


@dataclass(frozen=True, kw_only=True)
class ContrastivePreferenceOptimization(Objective):
    """A pair's term is the loss of its margin and its part of the mean loss of the better answers' tokens.

    Attributes:
        beta: Temperature of the margin; of ``ipo`` the paper's tau.
        loss_type: ``sigmoid``, ``hinge`` or ``ipo`` (over mean log-probabilities per token).
        label_smoothing: Probability that a label is wrong; ``sigmoid`` reads it.
        cpo_alpha: Weight of the better answers' own loss.
    """

    group_size: ClassVar[int] = 2
    beta: float = 0.1
    loss_type: str = "sigmoid"
    label_smoothing: float = 0.0
    cpo_alpha: float = 1.0

    def step_values(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """Return pairs per token of the better answers: a mean over tokens becomes a sum over pairs with it."""
        return (len(samples) // 2 / sum(int(sample.trained.sum()) for sample in samples[::2]),)

    def terms(self, groups: Groups) -> Tensor:
        numbers = groups.numbers
        log_p_G2 = self._log_p(groups)
        losses_G = pair_loss(
            log_p_G2[:, 0] - log_p_G2[:, 1],
            kind=self.loss_type,
            beta_G=numbers["beta"],
            smoothing_G=numbers["label_smoothing"],
        )
        return losses_G + numbers["cpo_alpha"] * groups.step_values[0] * groups.answer_losses_GS[:, 0]

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        return reward_metrics(torch.unsqueeze(groups.numbers["beta"], 1) * self._log_p(groups))

    def _log_p(self, groups: Groups) -> Tensor:
        if self.loss_type == "ipo":
            return -groups.answer_losses_GS / groups.answer_tokens_GS
        return -groups.answer_losses_GS


OBJECTIVE = ContrastivePreferenceOptimization()
