"""Which trials a task proposes at first, and which later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort.prepare.proposals import TrialProposals, num_first_trials
from cohort.tasks.task_file import TaskFile
from cohort.tuning.study import Study
from tests.end_to_end.tiny_tasks import tiny_task
from tests.training.small_models import random_rows

ROWS = random_rows(20)
RANGE = {"learning_rate": {"min": 1e-4, "max": 1e-2, "log": True}, "r": [2, 4]}


def task_with(tmp_path: Path, **search: Any) -> TaskFile:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "train.jsonl").touch()
    return tiny_task(tmp_path, search=search)


def test_a_grid_is_proposed_at_once(tmp_path: Path) -> None:
    proposals = TrialProposals(task_with(tmp_path), ROWS)
    assert proposals.is_complete
    found = [(trial.configuration["learning_rate"], trial.configuration["r"]) for trial in proposals.first]
    assert sorted(found) == [(rate, r) for rate in (1e-3, 1e-2, 3e-2) for r in (2, 4)]
    assert proposals.largest() == tuple(trial.spec for trial in proposals.first)


@pytest.mark.parametrize(
    ("search", "first"),
    [
        ({"sampler": "tpe", "trials": 60, "space": RANGE}, 20),
        ({"sampler": "tpe", "trials": 12, "space": RANGE}, 10),
        ({"sampler": "tpe", "trials": 12, "first_trials": 3, "space": RANGE}, 3),
        ({"sampler": "random", "trials": 12, "space": RANGE}, None),
        ({"sampler": "random", "trials": 12, "max_gpu_hours": 1, "space": RANGE}, 10),
    ],
)
def test_a_sampler_that_learns_begins_with_a_third(tmp_path: Path, search: dict[str, Any], first: int | None) -> None:
    task = task_with(tmp_path, **search)
    assert num_first_trials(task) == first
    assert len(TrialProposals(task, ROWS).first) == (first or search["trials"])


def test_memory_is_planned_for_the_largest_rank_of_later_trials(tmp_path: Path) -> None:
    space = {**RANGE, "r": {"min": 2, "max": 64}}
    task = task_with(tmp_path, sampler="tpe", trials=12, first_trials=1, space=space)
    proposals = TrialProposals(task, ROWS)
    assert {spec.adapter.r for spec in proposals.largest()} == {64}


class Decided:
    """A study of which only the number of decisions matters."""

    decisions: tuple[object, ...] = ()


def test_the_budget_of_time_ends_proposing(tmp_path: Path) -> None:
    task = task_with(tmp_path, sampler="random", trials=12, first_trials=4, max_gpu_hours=1, space=RANGE)
    proposals = TrialProposals(task, ROWS)
    study: Study = Decided()  # type: ignore[assignment]
    assert proposals.after(study, gpu_seconds=3599) == ()
    assert (proposals.ended_by_time, proposals.is_complete) == (None, False)
    assert proposals.after(study, gpu_seconds=3600) == ()
    said = "4 of 12 trials were proposed when search.max_gpu_hours (1) was used up"
    assert (proposals.ended_by_time, proposals.is_complete) == (said, True)


def test_the_same_seed_proposes_the_same_trials(tmp_path: Path) -> None:
    search = {"sampler": "random", "trials": 5, "space": RANGE}
    one, two = (TrialProposals(task_with(tmp_path, **search), ROWS).first for _ in range(2))
    assert one == two
    assert len(np.unique([trial.configuration["learning_rate"] for trial in one])) == 5
