"""KTO values single answers by their label, against the reference and the mean of mismatched rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cohort.training.objectives.kinds.kto import KahnemanTverskyOptimization, mismatched
from tests.training.objectives.answers import groups_of, row

ROWS = (row(is_desirable=True), row(is_desirable=False))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_the_term_is_equation_8_with_the_weight_of_its_label() -> None:
    objective = KahnemanTverskyOptimization(beta=0.2, desirable_weight=2.0, undesirable_weight=3.0)
    groups = groups_of(objective, [[4.0], [4.0]], reference=[[5.0], [5.0]], samples=ROWS, step_values=(0.4, 0.5))
    # the ratio is 1, and 0.6 above the KL term
    good, bad = objective.terms(groups).tolist()
    assert good == pytest.approx(2.0 * (1 - sigmoid(0.2 * 0.6)))
    assert bad == pytest.approx(3.0 * (1 - sigmoid(-0.2 * 0.6)))
    assert objective.metrics(groups)["reward_accuracy"].tolist() == [1.0, 0.0]


def test_the_kl_term_is_a_mean_not_below_zero_and_keeps_a_nan() -> None:
    objective = KahnemanTverskyOptimization()
    assert objective.step_values(ROWS) == (0.0, 0.5)
    assert objective.measured_values((0.0, 0.5), [1.0, 2.0], [2.0, 4.0]) == (1.5, 0.5)
    assert objective.measured_values((0.0, 0.5), [3.0], [1.0]) == (0.0, 0.5)
    assert math.isnan(objective.measured_values((0.0, 0.5), [math.nan], [1.0])[0])


def test_a_mismatched_row_has_the_prompt_of_one_and_the_answer_of_the_other() -> None:
    found = mismatched(row(prompt=2, answer=1), row(prompt=3, answer=3), max_length=4)
    assert found.tokens.tolist() == [0, 1, 3, 4]
    assert np.flatnonzero(found.trained).tolist() == [2, 3]
    assert found.answer_start == 2
