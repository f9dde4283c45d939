"""Which value of an evaluation counts, and which of two is better."""

from __future__ import annotations

import math

import pytest

from cohort.core.events import Evaluated
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric

EVALUATED = Evaluated(trial_id=0, step=1, validation_loss=2.0, metrics={"exact_match": 0.5})


def test_the_loss_is_minimised_and_another_metric_read_by_name() -> None:
    match = ObjectiveMetric(name="exact_match", maximize=True)
    assert (LOSS.read(EVALUATED), match.read(EVALUATED)) == (2.0, 0.5)
    assert ObjectiveMetric(name="not_measured").read(EVALUATED) is None
    assert LOSS.cost(1.0) < LOSS.cost(2.0)
    assert match.cost(0.9) < match.cost(0.5)
    assert match.label == "exact match"


def test_a_loss_cannot_be_maximised() -> None:
    with pytest.raises(ValueError, match="the metric 'loss' is minimi"):
        ObjectiveMetric(name="loss", maximize=True)


@pytest.mark.parametrize(
    ("loss", "metrics", "value"),
    [(2.0, {"exact_match": 0.5}, 0.5), (math.nan, {"exact_match": 0.5}, None), (2.0, {"exact_match": math.nan}, None)],
)
def test_what_is_not_finite_does_not_compete(loss: float, metrics: dict[str, float], value: float | None) -> None:
    assert ObjectiveMetric(name="exact_match", maximize=True).competing_value(loss, metrics) == value
    assert ObjectiveMetric(name="contains").competing_value(loss, metrics) is None
