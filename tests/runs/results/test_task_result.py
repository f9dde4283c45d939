"""What a finished run came to, for those who call from Python."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from cohort.core.errors import InputError, RunStateError
from cohort.core.statistics.estimates import Estimate
from cohort.runs.directory import RunDirectory
from cohort.runs.results.comparison import Comparison, Contender
from cohort.runs.results.metrics_file import MetricsFile
from cohort.runs.results.results import read_results
from cohort.runs.results.results_table import finite_values, write_results_csv
from cohort.runs.results.task_result import TasksFailedError, read_task_result
from tests.runs.small_run import SmallRun


def test_the_best_trial_and_its_metrics_are_those_of_the_run(run: SmallRun) -> None:
    directory, store, _ = run
    store.close()
    result = read_task_result(directory.root, name="gsm8k")
    assert (result.name, result.adapter_directory) == ("gsm8k", directory.best)
    assert result.best_trial is not None
    assert result.best_trial["trial"] == 1
    assert result.metrics["loss"] == 1.25
    assert result.base_value == 3.0
    assert [row["rank"] for row in result.trials] == [1, 2, 3, 4]


def test_the_table_of_a_run_that_goes_on_as_a_frame(run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, store, _ = run
    store.close()
    with directory.lock():
        result = read_task_result(directory.root)
    assert (result.name, result.state) == (directory.root.name, "running")
    frame = result.trials_frame()
    assert list(frame["trial"]) == [1, 0, 2, 3]
    assert {"learning_rate", "r", "eval_loss"} <= set(frame.columns)
    assert read_task_result(directory.root).state == "stopped", "no process holds it"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        result.trials_frame()


def test_the_curves_are_the_lines_of_the_metrics_file(run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, store, _ = run
    MetricsFile(directory.metrics_jsonl, reader=store.reader).write()
    store.close()
    result = read_task_result(directory.root)
    curves = result.curves()
    assert finite_values(curves) == [json.loads(line) for line in directory.metrics_jsonl.read_text().splitlines()]
    frame = result.curves_frame()
    assert len(frame) == len(curves)
    assert {"trial", "step", "loss", "learning_rate", "eval_loss"} <= set(frame.columns)
    best = frame[(frame["trial"] == 1) & frame["eval_loss"].notna()]
    assert best["eval_loss"].min() == result.metrics["loss"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"result.curves\(\), which is a list of dicts"):
        result.curves_frame()


def test_the_frame_has_the_columns_of_the_file(run: SmallRun) -> None:
    directory, store, _ = run
    winner = Contender(
        trial_id=1, step=1, values={"loss": Estimate(value=1.5, low=1.0, high=2.0, num_rows=8)}, winner_minus={}
    )
    store.set_facts(finals=Comparison(num_rows=8, num_available=8, num_tokens=0, ranked=(winner,), others=()))
    write_results_csv(directory.results_csv, results=read_results(store.reader))
    store.close()
    frame = read_task_result(directory.root).trials_frame()
    with directory.results_csv.open(newline="") as stream:
        written = next(csv.reader(stream))
    assert set(frame.columns) == {*written, "best_value", "why", "kept"}
    assert frame.loc[frame["trial"] == 1, "final_loss_high"].item() == 2.0


def test_a_run_without_a_record_has_no_trials_yet(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    with directory.lock():
        directory.task_file.write_text("model_name_or_path: owner/model\n")
        result = read_task_result(directory.root)
    assert (result.state, result.best_trial, result.metrics, result.trials) == ("running", None, {}, [])
    assert result.trials_frame().empty


def test_there_must_be_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_task_result(tmp_path, name="nothing")


def test_failures_are_named_with_what_is_done(run: SmallRun) -> None:
    directory, store, _ = run
    store.close()
    done = read_task_result(directory.root, name="one")
    error = TasksFailedError(results={"one": done}, failures={"two": RunStateError("it broke")})
    assert str(error) == "1 of 2 tasks failed (two: it broke)"
    assert error.results == {"one": done}
