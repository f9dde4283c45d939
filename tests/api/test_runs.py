"""Runs from Python without an engine: what is handed on, and what is refused before anything is read."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from cohort.api import runs
from cohort.api.engine import Engine
from cohort.api.runs import load, load_run, resume, run, tune
from cohort.core.errors import InputError
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.tune import RunOptions
from cohort.tasks.task import Task
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the engine below was called with; the result is the directory."""
    found: dict[str, Any] = {}

    def keep(*args: Any, **keys: Any) -> None:
        keys["watcher"].note("warning: careful")
        found.update(args=args, **keys)

    monkeypatch.setattr("cohort.engine.tune.tune", keep)
    monkeypatch.setattr("cohort.engine.tune.resume", keep)
    monkeypatch.setattr(runs, "read_task_result", lambda directory: ("result of", directory))
    return found


def test_run_hands_everything_to_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handed: dict[str, Any] = {}
    monkeypatch.setattr(Engine, "run", lambda self, tasks, **keys: handed.update(keys, tasks=tasks) or "result")
    (tmp_path / "rows.jsonl").touch()
    task = Task(model="owner/model", dataset=tmp_path / "rows.jsonl")
    keys: dict[str, Any] = {
        "early_exit": None,
        "run_directory": "runs/mine",
        "on_existing": "overwrite",
        "on_step": print,
        "on_evaluation": None,
        "on_trial_end": None,
        "study": None,
        "progress": False,
        "watcher": None,
        "options": RunOptions(token_budget=7),
    }
    result: Any = run(task, total_gpus=0, **keys)
    assert result == "result"
    assert handed == {**keys, "tasks": task}


def test_run_takes_what_an_engine_takes() -> None:
    ours = {name for name in inspect.signature(run).parameters if name != "total_gpus"}
    theirs = set(inspect.signature(Engine.run).parameters) - {"self", "schedule", "clock"}
    assert ours == theirs


def test_tune_takes_a_task_that_was_loaded(called: dict[str, Any], tmp_path: Path) -> None:
    task = tiny_task(write_inputs(tmp_path / "inputs"))
    options = RunOptions(checkpoint_seconds=1.0)
    result: Any = tune(task, str(tmp_path / "run"), options=options)
    assert result == ("result of", tmp_path / "run")
    assert called["args"] == (task, tmp_path / "run")
    assert called["options"] is options


def test_resume_hands_on_places_and_callbacks(called: dict[str, Any], tmp_path: Path) -> None:
    places = ["--dataset.train", "rows.jsonl"]
    result: Any = resume(tmp_path, places=places, on_trial_end=print)
    assert result == ("result of", tmp_path)
    assert (called["args"], called["places"]) == ((tmp_path,), places)
    assert called["callbacks"] == Callbacks(on_trial_end=print)


def test_wrong_arguments_begin_nothing(called: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    task: Any = Task(model="owner/model", dataset=tmp_path / "rows.jsonl")
    wrong: Any = "often"
    for call, told in (
        (lambda: tune(task, tmp_path), r"a value of type Task; .*cohort\.run\(task\)"),
        (lambda: resume(tmp_path, on_step=wrong), "on_step: found"),
        (lambda: resume(tmp_path, progress=wrong), "progress: found a value of type str"),
        (lambda: resume(""), "resume: run_directory: found ''"),
    ):
        with pytest.raises(InputError, match=told):
            call()
    assert called == {}


def test_load_says_where_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run\.db in it"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"no run\.db in it"):
        load_run(tmp_path)
