"""DPO compares the margin of two answers with the reference's."""

from __future__ import annotations

import math

import pytest

from cohort.training.objectives.kinds.dpo import DirectPreferenceOptimization
from tests.training.objectives.answers import groups_of

LOSSES, REFERENCE = [[4.0, 5.0]], [[4.5, 4.0]]
# by how much more the trial favours the better answer than the reference does: (4.5 - 4) - (4 - 5)
MARGIN = 1.5


def test_the_term_is_equation_7() -> None:
    objective = DirectPreferenceOptimization(beta=0.2)
    groups = groups_of(objective, LOSSES, reference=REFERENCE)
    assert objective.terms(groups).item() == pytest.approx(math.log1p(math.exp(-0.2 * MARGIN)))
    assert objective.metrics(groups)["reward_margin"].item() == pytest.approx(0.2 * MARGIN)


def test_ipo_takes_means_per_token() -> None:
    objective = DirectPreferenceOptimization(beta=0.2, loss_type="ipo")
    assert objective.terms(groups_of(objective, LOSSES, reference=REFERENCE)).item() == pytest.approx(
        (MARGIN / 2 - 1 / (2 * 0.2)) ** 2
    )
