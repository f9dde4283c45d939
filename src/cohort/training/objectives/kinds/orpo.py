"""Odds ratio preference optimization: the better answer is learned, and its odds raised against the other's.

Source: Hong et al. 2024, eq. 6 and 7, as TRL's ``ORPOTrainer``: the better answer's own loss counts its prompt as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cohort.core.setting_fields import number
from cohort.data.settings import RowReading
from cohort.data.tokenised import Sample
from cohort.training.objectives.declaration import ObjectiveDeclaration, Searched
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.pair_losses import reward_metrics

__all__ = ["DECLARATION", "OBJECTIVE", "OddsRatioPreferenceOptimization"]

DECLARATION = ObjectiveDeclaration(
    name="orpo",
    summary="odds ratio preference optimization: the better answer is learned, and its odds raised",
    reads=RowReading.PAIRS,
    values={
        "beta": Searched(made=number(0.1, "weight of the odds ratio", minimum=None), example="[0.05, 0.1, 0.3]"),
    },
    measures=("reward_accuracy", "reward_margin"),
)


@dataclass(frozen=True, kw_only=True)
class OddsRatioPreferenceOptimization(Objective):
    """A pair's term is its log odds ratio's loss and its part of the mean loss of the better rows' tokens.

    Attributes:
        beta: Weight of the odds ratio (the paper's lambda).
    """

    group_size: ClassVar[int] = DECLARATION.group_size
    beta: float = DECLARATION.default("beta")

    def seen(self, sample: Sample, *, place: int) -> Sample:
        """Return the better row with all of its tokens trained but the first, which nothing predicts."""
        if place:
            return sample
        trained = np.ones_like(sample.trained)
        trained[0] = False
        # an answer that begins in the middle of a conversation keeps its own turns only
        trained[sample.answer_start :] = sample.trained[sample.answer_start :]
        return replace(sample, trained=trained)

    def step_values(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """Return pairs per token of the better rows: a mean over tokens becomes a sum over pairs with it."""
        return (len(samples) // 2 / sum(int(sample.trained.sum()) for sample in samples[::2]),)

    def terms(self, groups: Groups) -> Tensor:
        log_p_G2 = -groups.answer_losses_GS / groups.answer_tokens_GS
        log_odds_G2 = log_p_G2 - _log_one_minus_exp(log_p_G2)
        ratios_G = F.logsigmoid(log_odds_G2[:, 0] - log_odds_G2[:, 1])
        own_G = groups.prompt_losses_GS[:, 0] + groups.answer_losses_GS[:, 0]
        return groups.step_values[0] * own_G - groups.numbers["beta"] * ratios_G

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        log_p_G2 = -groups.answer_losses_GS / groups.answer_tokens_GS
        return reward_metrics(torch.unsqueeze(groups.numbers["beta"], 1) * log_p_G2)


def _log_one_minus_exp(values: Tensor) -> Tensor:
    """Return ``log(1 - exp(x))`` for x < 0, exact near 0 and far below it (Maechler 2012)."""
    is_near = values > -0.6931472
    # each branch sees values that the other one is for, and its gradient there must not be NaN
    near = torch.log(-torch.expm1(torch.where(is_near, values, -0.5)))
    far = torch.log1p(-torch.exp(torch.where(is_near, -1.0, values)))
    return torch.where(is_near, near, far)


OBJECTIVE = OddsRatioPreferenceOptimization()
