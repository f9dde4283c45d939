"""The result of a task, for callers from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.results import read_results
from cohort.runs.results_table import results_json

__all__ = ["TaskResult", "TasksFailedError", "read_task_result"]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The outcome of one task.

    Attributes:
        run_directory: Holds everything that was written.
        adapter_directory: The best adapter, as PEFT and vLLM load it.
        best_trial: Row of ``trials`` that it comes from.
        metrics: The best adapter's ``loss`` and further metrics on the validation rows.
        base_value: The task's metric of the model without an adapter.
        trials: The trials table, best first, as ``--json`` prints it (``FILE_COLUMNS`` of
            :mod:`cohort.runs.results_table`).
    """

    name: str
    run_directory: Path
    adapter_directory: Path
    best_trial: Mapping[str, Any]
    metrics: Mapping[str, float]
    base_value: float | None
    trials: list[dict[str, Any]]
    seconds: float
    report: Path


class TasksFailedError(CohortError):
    """Some of several tasks failed; the results of the others are here.

    Attributes:
        results: The tasks that are done, by name.
        failures: The errors of the others, by name.
    """

    def __init__(self, *, results: Mapping[str, TaskResult], failures: Mapping[str, CohortError]) -> None:
        self.results, self.failures = dict(results), dict(failures)
        listed = "; ".join(f"{name}: {error}" for name, error in failures.items())
        super().__init__(f"{len(failures)} of {len(failures) + len(results)} tasks failed ({listed})")


def read_task_result(run_directory: Path, *, name: str) -> TaskResult:
    """Return the result of a finished run.

    Raises:
        InputError: there is no run in ``run_directory``.
    """
    directory = RunDirectory.open(run_directory)
    with RunReader.open(directory.database) as reader:
        results = read_results(reader)
    # what a caller gets is what --json prints, so that scripts in Python and in the shell see the same names
    plain = results_json(results)
    trials: list[dict[str, Any]] = plain["trials"]
    # finish_run() raises for a run without one
    assert results.best is not None, "a run that ended well has a best trial"
    best_trial = next(row for row in trials if row["trial"] == results.best.trial_id)
    return TaskResult(
        name=name,
        run_directory=directory.root,
        adapter_directory=directory.best,
        best_trial=best_trial,
        metrics={"loss": best_trial["eval_loss"], **best_trial["metrics"]},
        base_value=results.base_value,
        trials=trials,
        seconds=results.run_seconds,
        report=directory.report,
    )
