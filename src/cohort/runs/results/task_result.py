"""The result of a task, finished or so far, for callers from Python."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError, InputError, Problem
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.results.metrics_file import metric_records
from cohort.runs.results.results_table import FILE_COLUMNS, results_json
from cohort.runs.status import read_status

__all__ = ["TaskResult", "TasksFailedError", "read_task_result"]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The outcome of one task, at the moment it was read.

    Attributes:
        name: The task's, or that of the run directory.
        state: ``done``, ``running`` (a process trains it now) or ``stopped`` (:func:`cohort.resume` continues it).
        run_directory: Holds everything that was written.
        adapter_directory: The best adapter, as PEFT and vLLM load it; it exists once the run is done.
        best_trial: Row of ``trials`` of the best adapter, or of the best so far while the run is not done; None before
            the first evaluation.
        metrics: The best adapter's ``loss`` (mean per trained token, in nats) and further metrics on the validation
            rows; empty before the first evaluation.
        base_value: The task's metric of the model without an adapter; None until it was measured.
        trials: The trials table, best first, as ``--json`` prints it (``FILE_COLUMNS`` of
            :mod:`cohort.runs.results.results_table`).
        seconds: Run time so far, in seconds; it stands still while the run is stopped.
        report: One HTML file with everything; it exists once the run is done.
    """

    name: str
    state: str
    run_directory: Path
    adapter_directory: Path
    # a notebook shows a result as its last value: these would bury the rest
    best_trial: Mapping[str, Any] | None = field(repr=False)
    metrics: Mapping[str, float]
    base_value: float | None
    trials: list[dict[str, Any]] = field(repr=False)
    seconds: float
    report: Path

    def trials_frame(self) -> Any:
        """Return ``trials`` as a pandas DataFrame: a row for each trial, best first, a column for each hyperparameter.

        It has the columns of ``results.csv``, and ``best_value``, ``why`` and ``kept``.

        Raises:
            InputError: pandas is not installed.
        """
        pandas = _pandas("trials_frame()", instead="result.trials")
        return pandas.DataFrame([_flat(row) for row in self.trials])

    def curves(self) -> list[dict[str, Any]]:
        """Return a record for every step and every evaluation of every trial, in the order in which they happened.

        Names are those of ``metrics.jsonl``: ``trial``, ``step`` and ``seconds``, with ``loss``, ``grad_norm``,
        ``learning_rate`` and ``num_tokens`` of a step, or ``eval_loss`` and other metrics of an evaluation.

        Raises:
            RunStateError: the run's database cannot be read.
        """
        database = RunDirectory.open(self.run_directory).database
        if not database.exists():
            return []
        with RunReader.open(database) as reader:
            return list(metric_records(reader.log.entries(after=0), tokens={}))

    def curves_frame(self) -> Any:
        """Return :meth:`curves` as a pandas DataFrame; what a record does not have is NaN.

        Raises:
            InputError: pandas is not installed.
        """
        pandas = _pandas("curves_frame()", instead="result.curves()")
        return pandas.DataFrame(self.curves())


def _pandas(call: str, *, instead: str) -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise InputError(
            Problem(
                where=call,
                found="no package pandas",
                allowed=f"pandas installed, or {instead}, which is a list of dicts",
                hint="Run: pip install pandas",
            )
        ) from None


_SPREAD = {column.name: column.each for column in FILE_COLUMNS if column.each}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if (form := _SPREAD.get(name)) is not None:
            flat |= {form.format(key): entry for key, entry in value.items()}
        else:
            flat[name] = value
    return flat


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


def read_task_result(run_directory: Path, *, name: str | None = None) -> TaskResult:
    """Return the result of a run as far as it is, also while another process trains it.

    Args:
        run_directory: The run's.
        name: The task's; the directory's when None.

    Raises:
        InputError: there is no run in ``run_directory``.
        RunStateError: its database cannot be read.
    """
    directory = RunDirectory.open(run_directory)
    name = name or directory.root.resolve().name
    if not directory.database.exists():
        # the task is written, the record not yet
        state = "stopped" if directory.lock().holder() is None else "running"
        return _result(directory, name=name, state=state, plain={"trials": [], "base_value": None, "seconds": 0.0})
    status = read_status(directory)
    # what a caller gets is what --json prints, so that scripts in Python and in the shell see the same names
    return _result(directory, name=name, state=status.state, plain=results_json(status.results))


def _result(directory: RunDirectory, *, name: str, state: str, plain: Mapping[str, Any]) -> TaskResult:
    best: Mapping[str, Any] | None = plain.get("best")
    return TaskResult(
        name=name,
        state=state,
        run_directory=directory.root,
        adapter_directory=directory.best,
        best_trial=best,
        metrics={} if best is None else {"loss": best["eval_loss"], **best["metrics"]},
        base_value=plain["base_value"],
        trials=plain["trials"],
        seconds=plain["seconds"],
        report=directory.report,
    )
