"""ORPO learns the better row whole, and raises its odds against the other's."""

from __future__ import annotations

import math

import pytest
import torch

from cohort.training.objectives.kinds.orpo import OddsRatioPreferenceOptimization
from tests.training.objectives.answers import groups_of, row


def log_odds(loss: float) -> float:
    p = math.exp(-loss / 2)
    return math.log(p / (1 - p))


def test_the_term_is_equations_6_and_7() -> None:
    objective = OddsRatioPreferenceOptimization(beta=0.3)
    groups = groups_of(objective, [[4.0, 5.0]], prompt_losses=[[1.5, 0.0]], step_values=(0.2,))
    ratio = log_odds(4.0) - log_odds(5.0)
    expected = 0.2 * (1.5 + 4.0) + 0.3 * math.log1p(math.exp(-ratio))
    assert objective.terms(groups).item() == pytest.approx(expected)


def test_the_better_row_is_trained_whole_and_the_other_as_it_is() -> None:
    objective, own = OddsRatioPreferenceOptimization(), row(prompt=3, answer=2)
    assert objective.seen(own, place=0).trained.tolist() == [False, True, True, True, True]
    assert objective.seen(own, place=1) is own


@pytest.mark.parametrize("loss", [1e-9, 1e-3, 80.0, 1e4])
def test_gradients_of_answers_that_are_certain_or_impossible_are_finite(loss: float) -> None:
    objective = OddsRatioPreferenceOptimization()
    groups = groups_of(objective, [[loss, 1.0]], step_values=(0.5,))
    objective.terms(groups).sum().backward()
    assert groups.answer_losses_GS.grad is not None
    assert torch.isfinite(groups.answer_losses_GS.grad).all()
