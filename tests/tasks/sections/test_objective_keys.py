"""The keys that the task file knows of an objective are those that the objective has."""

from __future__ import annotations

from dataclasses import fields

import pytest

from cohort.tasks.sections.objective_keys import OBJECTIVE_VALUES, READS, REFERENCE_OBJECTIVES, ObjectiveKeys
from cohort.training.objectives import OBJECTIVES


def test_every_objective_has_its_keys() -> None:
    assert OBJECTIVE_VALUES.keys() == OBJECTIVES.keys() == READS.keys()
    assert {name for name, own in OBJECTIVES.items() if own.needs_reference} == set(REFERENCE_OBJECTIVES)
    searched = {field.name for field in fields(ObjectiveKeys)}
    assert {key for values in OBJECTIVE_VALUES.values() for key in values} == searched


@pytest.mark.parametrize("name", sorted(OBJECTIVE_VALUES))
def test_values_without_a_word_of_the_task_are_the_objective_s_own(name: str) -> None:
    for key, value in OBJECTIVE_VALUES[name].items():
        assert getattr(OBJECTIVES[name], key) == value, key
