"""Results of earlier searches in a task file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.tasks.loading import load_task
from cohort.tasks.task import Task
from cohort.tuning.samplers import EarlierResult


def task_of(folder: Path, results: Any, **search: Any) -> Task:
    search = {"sampler": "tpe", "earlier_results": results, **search}
    return Task(model=folder / "model", dataset=folder / "train.jsonl", search=search, search_space={"r": [4, 8]})


def test_they_are_read_and_written_back(folder: Path) -> None:
    task = task_of(folder, [{"r": 8, "learning_rate": 2e-4, "value": 2}])
    assert task.file.search.earlier_results == (EarlierResult(values={"r": 8, "learning_rate": 2e-4}, value=2.0),)
    (folder / "resolved.yaml").write_text(task.file.resolved_yaml())
    assert load_task(folder / "resolved.yaml").search == task.file.search


@pytest.mark.parametrize(
    ("results", "told"),
    [
        (5, r"search\.earlier_results: found 5"),
        ([{"r": 8}], r"search\.earlier_results\[0\]: found \{'r': 8\}"),
        ([{"r": 8, "value": "x"}], r"earlier_results\[0\]"),
        ([{"rank": 8, "value": 1}], r"found the key 'rank'; .*Did you mean r\?"),
        ([{"value": 1}, {"r": 0, "value": 1}], r"earlier_results\[1\]\.r: found 0"),
        ([{"lora_alpha": "2r", "value": 1}], "Write the number that the trial had"),
    ],
)
def test_what_is_no_result_is_refused(folder: Path, results: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        task_of(folder, results)


def test_a_sampler_that_does_not_learn_has_no_use_for_them(folder: Path) -> None:
    with pytest.raises(InputError, match="sampler: random, which does not learn"):
        task_of(folder, [{"r": 8, "value": 1}], sampler="random")
