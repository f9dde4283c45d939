"""Supervised fine-tuning: mean cross-entropy over a slot's own trained tokens of its own optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cohort.data.tokenised import Sample
from cohort.training.objectives.objective import Objective
from cohort.training.token_losses import sequence_sums

__all__ = ["OBJECTIVE", "SupervisedFineTuning"]


class SupervisedFineTuning(Objective):
    """A row's term is the sum of its token losses; the divisor is the number of trained tokens."""

    sums_tokens = True

    def divisor(self, samples: Sequence[Sample]) -> int:
        """Return the trained tokens: each counts the same, in a long row or a short one."""
        return sum(int(sample.trained.sum()) for sample in samples)

    def terms(self, losses_T: Tensor, samples: Sequence[Sample]) -> Tensor:
        return sequence_sums(losses_T, samples)


OBJECTIVE = SupervisedFineTuning()
