"""Supervised fine-tuning: mean cross-entropy over a slot's own trained tokens of its own optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cohort.data.settings import RowReading
from cohort.data.tokenised import Sample
from cohort.training.objectives.declaration import ObjectiveDeclaration
from cohort.training.objectives.objective import Groups, Objective

__all__ = ["DECLARATION", "OBJECTIVE", "SupervisedFineTuning"]

DECLARATION = ObjectiveDeclaration(
    name="sft",
    summary="supervised fine-tuning: the mean loss of the trained tokens",
    reads=RowReading.ANSWERS,
    loss_unit="nats per token",
)


@dataclass(frozen=True, kw_only=True)
class SupervisedFineTuning(Objective):
    """A row's term is the sum of its token losses; the divisor is the number of trained tokens."""

    sums_tokens: ClassVar[bool] = True

    def divisor(self, samples: Sequence[Sample]) -> int:
        """Return the trained tokens: each counts the same, in a long row or a short one."""
        return sum(int(sample.trained.sum()) for sample in samples)

    def terms(self, groups: Groups) -> Tensor:
        return groups.answer_losses_GS[:, 0] + groups.prompt_losses_GS[:, 0]


OBJECTIVE = SupervisedFineTuning()
