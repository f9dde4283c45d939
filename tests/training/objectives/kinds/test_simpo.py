"""SimPO compares means per token, with a margin that they should have."""

from __future__ import annotations

import math

import pytest

from cohort.training.objectives.kinds.simpo import SimplePreferenceOptimization
from tests.training.objectives.answers import groups_of


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_term_is_equation_6(alpha: float) -> None:
    objective = SimplePreferenceOptimization(beta=2.0, simpo_gamma=0.6, cpo_alpha=alpha)
    groups = groups_of(objective, [[4.0, 5.0]], step_values=(0.25,))
    # beta times the difference of the means, 0.5, less gamma
    expected = math.log1p(math.exp(-(2.0 * 0.5 - 0.6))) + alpha * 0.25 * 4.0
    assert objective.terms(groups).item() == pytest.approx(expected)
    assert objective.metrics(groups)["reward_margin"].item() == pytest.approx(2.0 * 0.5)
