"""Contrastive preference optimization: the margin between two answers, without a reference, and the better one learned.

Source: Xu et al. 2024, eq. 3 and 6, with the loss types of TRL's ``CPOTrainer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cohort.core.setting_fields import choice, number
from cohort.data.settings import RowReading
from cohort.data.tokenised import Sample
from cohort.training.objectives.declaration import ObjectiveDeclaration, Searched
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.pair_losses import pair_loss, reward_metrics

__all__ = ["DECLARATION", "OBJECTIVE", "ContrastivePreferenceOptimization"]

DECLARATION = ObjectiveDeclaration(
    name="cpo",
    summary="contrastive preference optimization: the margin between two answers, without a reference",
    reads=RowReading.PAIRS,
    values={
        "beta": Searched(made=number(0.1, "temperature of the margin", minimum=None), example="[0.05, 0.1, 0.3]"),
        "loss_type": Searched(
            made=choice("sigmoid", "form of the loss", options=("sigmoid", "hinge", "ipo")),
            example="[sigmoid, ipo]",
        ),
        "label_smoothing": Searched(
            made=number(0.0, "probability that a label is wrong", below=0.5),
            example="[0.0, 0.1]",
            only_with={"loss_type": ("sigmoid",)},
        ),
        "cpo_alpha": Searched(made=number(1.0, "weight of the better answers' own loss"), example="[0.0, 1.0]"),
    },
    measures=("reward_accuracy", "reward_margin"),
)


@dataclass(frozen=True, kw_only=True)
class ContrastivePreferenceOptimization(Objective):
    """A pair's term is the loss of its margin and its part of the mean loss of the better answers' tokens.

    Attributes:
        beta: Temperature of the margin; of ``ipo`` the paper's tau.
        loss_type: ``sigmoid``, ``hinge`` or ``ipo`` (over mean log-probabilities per token).
        label_smoothing: Probability that a label is wrong; ``sigmoid`` reads it.
        cpo_alpha: Weight of the better answers' own loss.
    """

    group_size: ClassVar[int] = DECLARATION.group_size
    beta: float = DECLARATION.default("beta")
    loss_type: str = DECLARATION.default("loss_type")
    label_smoothing: float = DECLARATION.default("label_smoothing")
    cpo_alpha: float = DECLARATION.default("cpo_alpha")

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
