"""Where the base model is the reference, chance takes its place."""

from __future__ import annotations

import pytest

from cohort.runs.fact_groups import InputFacts, TaskFacts
from cohort.runs.facts import RunFacts
from cohort.runs.results.reference_baseline import chance_of


@pytest.mark.parametrize(
    ("objective", "adapter_hash", "metric", "expected"),
    [
        ("dpo", None, "reward_accuracy", 0.5),
        ("dpo", None, "reward_margin", 0.0),
        ("kto", None, "reward_accuracy", 0.5),
        ("dpo", None, "loss", None),
        # the base model has rewards of its own
        ("dpo", "0f3a", "reward_accuracy", None),
        ("orpo", None, "reward_accuracy", None),
        ("sft", None, "exact_match", None),
    ],
)
def test_chance_is_for_rewards_of_log_ratios(
    objective: str, adapter_hash: str | None, metric: str, expected: float | None
) -> None:
    facts = RunFacts(task=TaskFacts(objective=objective), inputs=InputFacts(reference_adapter_hash=adapter_hash))
    assert chance_of(facts, metric=metric) == expected
