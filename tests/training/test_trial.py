"""A trial's configuration: its learning rates over the planned steps, and its order of samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.adapters.spec import AdapterSpec
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec

SPEC = TrialSpec(
    trial_id=1,
    seed=7,
    adapter=AdapterSpec(r=4, lora_alpha=4.0),
    learning_rate=2.0,
    batch_size=3,
    num_steps=10,
    schedule=Schedule.LINEAR,
    warmup_ratio=0.2,
)


def test_the_rate_climbs_over_the_warm_up_and_falls_to_zero() -> None:
    rates = [SPEC.learning_rate_at(step) for step in range(11)]
    assert rates == pytest.approx([0.0, 1.0, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_the_order_follows_from_the_seed_alone() -> None:
    other = replace(SPEC, trial_id=2, learning_rate=1.0, adapter=AdapterSpec(r=8, lora_alpha=1.0))
    assert [SPEC.order(10).batch(step) for step in range(8)] == [other.order(10).batch(step) for step in range(8)]
    assert SPEC.order(10).permutation(0).tolist() != replace(SPEC, seed=8).order(10).permutation(0).tolist()
    assert sorted(row for step in range(4) for row in SPEC.order(10).batch(step)) == list(range(10))
