"""CPO has no reference, and learns the better answer as well."""

from __future__ import annotations

import math

import pytest

from cohort.training.objectives.kinds.cpo import ContrastivePreferenceOptimization
from tests.training.objectives.answers import groups_of, row


def test_the_term_is_the_margin_s_loss_and_the_better_answer_s_own() -> None:
    objective = ContrastivePreferenceOptimization(beta=0.2, cpo_alpha=0.5)
    values = objective.step_values([row(), row(), row(answer=4), row()])
    # two pairs, whose better answers have 2 and 4 tokens
    assert values == (2 / 6,)
    terms = objective.terms(groups_of(objective, [[4.0, 5.0]], step_values=values))
    assert terms.item() == pytest.approx(math.log1p(math.exp(-0.2 * 1.0)) + 0.5 * (2 / 6) * 4.0)


def test_ipo_takes_means_per_token() -> None:
    objective = ContrastivePreferenceOptimization(beta=0.2, cpo_alpha=0.0, loss_type="ipo")
    terms = objective.terms(groups_of(objective, [[4.0, 5.0]], step_values=(1.0,)))
    assert terms.item() == pytest.approx((0.5 - 1 / (2 * 0.2)) ** 2)
