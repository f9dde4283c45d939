"""Direct preference optimization: pairs of answers, each compared with what a reference model gives it.

Source: Rafailov et al. 2023, eq. 7 (``sigmoid``); Zhao et al. 2023, SLiC (``hinge``); Azar et al. 2023, eq. 17
(``ipo``, over mean log-probabilities per token as its authors do and TRL does); Mitchell 2023, conservative DPO
(``sigmoid`` with label smoothing); Chowdhury et al. 2024, eq. 12 (``robust``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cohort.core.setting_fields import choice, number
from cohort.data.settings import RowReading
from cohort.training.objectives.declaration import ObjectiveDeclaration, Searched
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.pair_losses import pair_loss, reward_metrics

__all__ = ["DECLARATION", "OBJECTIVE", "DirectPreferenceOptimization"]

DECLARATION = ObjectiveDeclaration(
    name="dpo",
    summary="direct preference optimization: pairs of answers, each compared with what a reference model gives it",
    reads=RowReading.PAIRS,
    values={
        "beta": Searched(
            made=number(0.1, "how strongly a trial is held to its reference", minimum=None), example="[0.05, 0.1, 0.3]"
        ),
        "loss_type": Searched(
            made=choice("sigmoid", "form of the loss", options=("sigmoid", "hinge", "ipo", "robust")),
            example="[sigmoid, ipo]",
        ),
        "label_smoothing": Searched(
            made=number(0.0, "probability that a label is wrong", below=0.5),
            example="[0.0, 0.1]",
            only_with={"loss_type": ("sigmoid", "robust")},
        ),
    },
    needs_reference=True,
    measures=("reward_accuracy", "reward_margin"),
    first_choice="chosen against rejected; or orpo, cpo, simpo, kto",
)


@dataclass(frozen=True, kw_only=True)
class DirectPreferenceOptimization(Objective):
    """A pair's term is the loss of its margin over the reference; the divisor is the number of pairs.

    Attributes:
        beta: How strongly a trial is held to the reference; of ``ipo`` the paper's tau.
        loss_type: ``sigmoid``, ``hinge``, ``ipo`` or ``robust``.
        label_smoothing: Probability that a label is wrong.
    """

    group_size: ClassVar[int] = DECLARATION.group_size
    needs_reference: ClassVar[bool] = DECLARATION.needs_reference
    beta: float = DECLARATION.default("beta")
    loss_type: str = DECLARATION.default("loss_type")
    label_smoothing: float = DECLARATION.default("label_smoothing")

    def terms(self, groups: Groups) -> Tensor:
        ratios_G2 = groups.reference_losses_GS - groups.answer_losses_GS
        if self.loss_type == "ipo":
            ratios_G2 = ratios_G2 / groups.answer_tokens_GS
        margins_G = ratios_G2[:, 0] - ratios_G2[:, 1]
        numbers = groups.numbers
        return pair_loss(margins_G, kind=self.loss_type, beta_G=numbers["beta"], smoothing_G=numbers["label_smoothing"])

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        ratios_G2 = groups.reference_losses_GS - groups.answer_losses_GS
        return reward_metrics(torch.unsqueeze(groups.numbers["beta"], 1) * ratios_G2)


OBJECTIVE = DirectPreferenceOptimization()
