"""Kahneman-Tversky optimization: single answers that are desirable or not, compared with a reference model.

Source: Ethayarajh et al. 2024, eq. 7 and 8, as TRL's ``KTOTrainer``; ``apo_zero_unpaired`` is D'Oosterlinck et al.
2024, eq. 7, on single answers. The KL term is the mean log-ratio of mismatched rows, the prompts of a step with the
answer of the row before, measured without gradient. We differ in what a batch is: a trial's whole optimizer step,
however it is cut, and all rows of an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from cohort.core.setting_fields import choice, number
from cohort.data.settings import RowReading
from cohort.data.tokenised import Sample
from cohort.training.objectives.declaration import BatchComparison, ObjectiveDeclaration, Searched
from cohort.training.objectives.objective import Groups, Objective

__all__ = ["DECLARATION", "OBJECTIVE", "KahnemanTverskyOptimization", "mismatched"]

DECLARATION = ObjectiveDeclaration(
    name="kto",
    summary="Kahneman-Tversky optimization: single answers, desirable or not, compared with a reference model",
    reads=RowReading.LABELS,
    values={
        "beta": Searched(
            made=number(0.1, "how strongly a trial is held to its reference", minimum=None), example="[0.05, 0.1, 0.3]"
        ),
        "loss_type": Searched(
            made=choice("kto", "form of the loss", options=("kto", "apo_zero_unpaired")),
            example="[kto, apo_zero_unpaired]",
        ),
        "desirable_weight": Searched(made=number(1.0, "weight of desirable rows"), example="[1.0, 1.33]"),
        "undesirable_weight": Searched(made=number(1.0, "weight of undesirable rows"), example="[1.0, 1.33]"),
    },
    needs_reference=True,
    measures=("reward_accuracy", "reward_margin"),
    compares_batch=BatchComparison(
        why="whose KL term compares each prompt with another row's answer",
        why_undivided="what kto measures before each step would empty the pipeline each time",
        instead="{type: kto, loss_type: apo_zero_unpaired}",
        only_with={"loss_type": ("kto",)},
    ),
    first_choice="by the rows' label; sft trains on all answers",
)


@dataclass(frozen=True, kw_only=True)
class KahnemanTverskyOptimization(Objective):
    """A row's term is what its value falls short of the best; the divisor is the number of rows.

    Attributes:
        beta: How strongly a trial is held to the reference.
        loss_type: ``kto``, or ``apo_zero_unpaired``, which has no KL term.
        desirable_weight, undesirable_weight: Weights of the terms, for labels that are not balanced.
        max_length: Most tokens of a mismatched row, as of the rows themselves.
    """

    needs_reference: ClassVar[bool] = DECLARATION.needs_reference
    beta: float = DECLARATION.default("beta")
    loss_type: str = DECLARATION.default("loss_type")
    desirable_weight: float = DECLARATION.default("desirable_weight")
    undesirable_weight: float = DECLARATION.default("undesirable_weight")
    max_length: int = 1 << 30

    @property
    def compares_batch(self) -> bool:
        return DECLARATION.compares_batch is not None and DECLARATION.compares_batch.applies(vars(self))

    def step_values(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """Return the KL term, 0 until it is measured, and the share of desirable rows."""
        return 0.0, sum(sample.is_desirable for sample in samples) / len(samples)

    def companions(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return each row's prompt with the answer of the row before it; the first gets the last one's."""
        return [
            mismatched(sample, samples[place - 1], max_length=self.max_length) for place, sample in enumerate(samples)
        ]

    def measured_values(
        self, values: tuple[float, ...], losses: Sequence[float], reference_losses: Sequence[float]
    ) -> tuple[float, ...]:
        ratios = [reference - loss for loss, reference in zip(losses, reference_losses, strict=True)]
        mean = sum(ratios) / len(ratios)
        # max() would drop a NaN, and with it the sign that the trial has diverged
        return mean if math.isnan(mean) else max(0.0, mean), values[1]

    def terms(self, groups: Groups) -> Tensor:
        numbers, signs_G = groups.numbers, _signs(groups)
        ratios_G = self._ratios(groups)
        weights_G = torch.where(signs_G > 0, numbers["desirable_weight"], numbers["undesirable_weight"])
        return weights_G * (1 - torch.sigmoid(signs_G * numbers["beta"] * ratios_G))

    def metrics(self, groups: Groups) -> Mapping[str, Tensor]:
        """Return whether a row lies on its label's side of the KL term, and its part of the margin between labels.

        The mean of the latter is the mean reward of desirable rows less that of the others, as TRL logs it.
        """
        signs_G, share_G = _signs(groups), groups.step_values[1]
        rewards_G = groups.numbers["beta"] * (groups.reference_losses_GS - groups.answer_losses_GS)[:, 0]
        parts_G = torch.where(signs_G > 0, share_G, 1 - share_G)
        return {
            "reward_accuracy": (signs_G * self._ratios(groups) > 0).to(rewards_G.dtype),
            "reward_margin": signs_G * rewards_G / parts_G,
        }

    def _ratios(self, groups: Groups) -> Tensor:
        return (groups.reference_losses_GS - groups.answer_losses_GS)[:, 0] - groups.step_values[0]


def mismatched(asked: Sample, answered: Sample, *, max_length: int) -> Sample:
    """Return the prompt of one row with the answer of another, cut at its end, as a row that is not in the data."""
    prompt = asked.tokens[: asked.answer_start]
    answer, trained = answered.tokens[answered.answer_start :], answered.trained[answered.answer_start :]
    mask = np.concatenate([np.zeros(len(prompt), dtype=np.bool_), trained])
    # nothing predicts the first token
    mask[:1] = False
    return Sample(
        sample_id=asked.sample_id,
        tokens=np.concatenate([prompt, answer])[:max_length],
        trained=mask[:max_length],
        answer_start=len(prompt),
    )


def _signs(groups: Groups) -> Tensor:
    signs = [1.0 if sample.is_desirable else -1.0 for sample in groups.samples]
    return groups.answer_losses_GS.new_tensor(signs)


OBJECTIVE = KahnemanTverskyOptimization()
