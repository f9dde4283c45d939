"""Simple preference optimization: mean log-probabilities of two answers, which should differ by a target margin.

Source: Meng et al. 2024, eq. 6, as TRL's ``CPOTrainer`` with ``loss_type="simpo"``; ``cpo_alpha`` above 0 is CPO-SimPO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cohort.core.setting_fields import number
from cohort.data.settings import RowReading
from cohort.data.tokenised import Sample
from cohort.training.objectives.declaration import ObjectiveDeclaration, Searched
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.pair_losses import pair_loss, reward_metrics

__all__ = ["DECLARATION", "OBJECTIVE", "SimplePreferenceOptimization"]

DECLARATION = ObjectiveDeclaration(
    name="simpo",
    summary="simple preference optimization: mean log-probabilities that differ by a target margin",
    reads=RowReading.PAIRS,
    values={
        "beta": Searched(made=number(0.1, "temperature of the margin", minimum=None), example="[0.05, 0.1, 0.3]"),
        "simpo_gamma": Searched(
            made=number(0.5, "reward margin that the better answer should have"), example="[0.5, 1.0]"
        ),
        "label_smoothing": Searched(
            made=number(0.0, "probability that a label is wrong", below=0.5),
            example="[0.0, 0.1]",
        ),
        "cpo_alpha": Searched(made=number(0.0, "weight of the better answers' own loss"), example="[0.0, 1.0]"),
    },
    measures=("reward_accuracy", "reward_margin"),
)


@dataclass(frozen=True, kw_only=True)
class SimplePreferenceOptimization(Objective):
    """A pair's term is the loss of its margin in mean log-probability; the divisor is the number of pairs.

    Attributes:
        beta: Temperature of the margin.
        simpo_gamma: How much more reward (``beta`` times the mean log-probability) the better answer should have.
        label_smoothing: Probability that a label is wrong.
        cpo_alpha: Weight of the better answers' own mean loss per token.
    """

    group_size: ClassVar[int] = DECLARATION.group_size
    beta: float = DECLARATION.default("beta")
    simpo_gamma: float = DECLARATION.default("simpo_gamma")
    label_smoothing: float = DECLARATION.default("label_smoothing")
    cpo_alpha: float = DECLARATION.default("cpo_alpha")

    def step_values(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """Return pairs per token of the better answers: a mean over tokens becomes a sum over pairs with it."""
        return (len(samples) // 2 / sum(int(sample.trained.sum()) for sample in samples[::2]),)

    def terms(self, groups: Groups) -> Tensor:
        numbers = groups.numbers
        log_p_G2 = -groups.answer_losses_GS / groups.answer_tokens_GS
        losses_G = pair_loss(
            log_p_G2[:, 0] - log_p_G2[:, 1] - numbers["simpo_gamma"] / numbers["beta"],
            kind="sigmoid",
            beta_G=numbers["beta"],
            smoothing_G=numbers["label_smoothing"],
        )
        return losses_G + numbers["cpo_alpha"] * groups.step_values[0] * groups.answer_losses_GS[:, 0]

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        log_p_G2 = -groups.answer_losses_GS / groups.answer_tokens_GS
        return reward_metrics(torch.unsqueeze(groups.numbers["beta"], 1) * log_p_G2)


OBJECTIVE = SimplePreferenceOptimization()
