"""The objective of a task's trials: values of the section, those that a trial searches, and the length of rows."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.prepare.objectives import task_objective
from cohort.tasks.task_file import TaskFile
from cohort.training.objectives import DEFAULT_OBJECTIVE


def task_of(objective: Any, **dataset: Any) -> TaskFile:
    return TaskFile.model_validate(
        {
            "model_name_or_path": "m",
            "dataset": {"train": "t.jsonl", "validation": "v.jsonl", **dataset},
            "objective": objective,
            "search": {"space": {"learning_rate": [1e-4]}},
        }
    )


def test_sft_needs_no_value() -> None:
    assert task_objective(task_of("sft")) == DEFAULT_OBJECTIVE


@pytest.mark.parametrize("name", ["dpo", "orpo", "cpo", "simpo", "kto"])
def test_a_trial_s_values_stand_before_those_of_the_section(name: str) -> None:
    task = task_of({"type": name, "beta": 0.25})
    assert vars(task_objective(task))["beta"] == 0.25
    searched = vars(task_objective(task, {"beta": 0.5, "learning_rate": 1e-4}))
    assert searched["beta"] == 0.5
    assert {**searched, "beta": 0.25} == vars(task_objective(task))


def test_mismatched_rows_are_no_longer_than_the_others() -> None:
    assert vars(task_objective(task_of("kto", max_length=48)))["max_length"] == 48
