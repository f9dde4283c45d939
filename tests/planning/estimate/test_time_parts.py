"""Exits shorten training, evaluation and the comparison, and nothing else."""

from __future__ import annotations

from cohort.planning.estimate.time_parts import TimeParts
from cohort.scheduling.cost.model import CostSource


def test_the_parts_add_up() -> None:
    parts = TimeParts(training=100.0, evaluation=20.0, comparison=3.0, start=7.0, rest=0.5, source=CostSource.ANALYTIC)
    assert parts.shortened == 123.0
    assert parts.total == 130.5
