"""What a finished run came to, for those who call from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError, RunStateError
from cohort.runs.task_result import TasksFailedError, read_task_result
from tests.runs.small_run import SmallRun


def test_the_best_trial_and_its_metrics_are_those_of_the_run(run: SmallRun) -> None:
    directory, store, _ = run
    store.close()
    result = read_task_result(directory.root, name="gsm8k")
    assert (result.name, result.adapter_directory) == ("gsm8k", directory.best)
    assert result.best_trial["trial"] == 1
    assert result.metrics["loss"] == 1.25
    assert result.base_value == 3.0
    assert [row["rank"] for row in result.trials] == [1, 2, 3, 4]


def test_there_must_be_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_task_result(tmp_path, name="nothing")


def test_failures_are_told_beside_what_is_done(run: SmallRun) -> None:
    directory, store, _ = run
    store.close()
    done = read_task_result(directory.root, name="one")
    error = TasksFailedError(results={"one": done}, failures={"two": RunStateError("it broke")})
    assert str(error) == "1 of 2 tasks failed (two: it broke)"
    assert error.results == {"one": done}
