"""Which value of an evaluation counts, and which of two is better."""

from __future__ import annotations

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
