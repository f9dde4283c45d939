"""What can be set of a run is what can be read of it."""

from __future__ import annotations

from dataclasses import fields

from cohort.runs.fact_updates import FactUpdates
from cohort.runs.facts import RunFacts


def test_every_fact_can_be_set_and_read() -> None:
    assert set(FactUpdates.__annotations__) == {entry.name for entry in fields(RunFacts)}
