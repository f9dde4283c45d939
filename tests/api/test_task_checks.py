"""Several tasks are checked before the first one starts, and every problem is told with its task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.api.task_checks import existing_runs, path_of, require_call, require_tasks
from cohort.core.errors import InputError, Problem
from cohort.engine.train.watching.progress import SilentWatcher
from cohort.engine.tune import RunOptions
from cohort.runs.directory import RunDirectory
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("checked"))


def task(folder: Path, name: str) -> Task:
    return Task(name=name, model=folder / "model", dataset=folder / "train.jsonl")


def problems_of(call: Callable[[], object]) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        call()
    return list(caught.value.problems)


def test_tasks_of_different_names_are_fine(folder: Path) -> None:
    tasks = [task(folder, "a"), task(folder, "b")]
    require_tasks(tasks, early_exit=EarlyExitSettings(), on_existing="error")
    require_tasks(tuple(tasks), early_exit=None, on_existing="overwrite")


def test_all_that_is_wrong_with_a_call_is_told_at_once(folder: Path) -> None:
    tasks = [task(folder, "a"), task(folder, "b"), task(folder, "a")]
    found = problems_of(lambda: require_tasks(tasks, early_exit="none", on_existing="resume "))
    assert [str(problem.where) for problem in found] == ["tasks", "early_exit", "on_existing"]
    assert "two tasks with the name 'a'" in found[0].found
    assert found[2].allowed == "resume | overwrite | error"
    assert [str(p.where) for p in problems_of(lambda: require_tasks([], early_exit=None, on_existing=["error"]))] == [
        "tasks", "on_existing"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (lambda folder: {"a": task(folder, "a")}, r"list(tasks.values())"),
        (lambda folder: (entry for entry in [task(folder, "a")]), "list(tasks)"),
        (lambda folder: [task(folder, "a"), folder / "task.yaml"], "cohort.load_task(PATH)"),
        (lambda folder: tiny_task(folder), "cohort.tune(task, RUN_DIRECTORY)"),
        (lambda folder: 3, "cohort.Task(model=..., dataset=...)"),
    ],
)
def test_what_is_no_list_of_tasks_says_what_to_write(folder: Path, given: Callable[[Path], Any], hint: str) -> None:
    (problem,) = problems_of(lambda: require_tasks(given(folder), early_exit=None, on_existing="resume"))
    assert hint in problem.hint


@pytest.mark.parametrize("given", ["runs/mine", Path("runs/mine")])
def test_a_path_may_be_text(given: Any) -> None:
    assert path_of(given, where="run_directory") == Path("runs/mine")


@pytest.mark.parametrize("given", [None, 3, "", "a\0b", b"runs", "ä" * 128])
def test_what_is_no_path_is_named(given: Any) -> None:
    (problem,) = problems_of(lambda: path_of(given, where="load: run_directory"))
    assert str(problem.where) == "load: run_directory"
    # 255 bytes is what a name may have, however few letters they are
    assert ("255 bytes" in problem.allowed) == (given == "ä" * 128)


def test_how_a_run_is_shown_is_checked_by_what_it_can_do() -> None:
    require_call(progress=None, watcher=SilentWatcher(), options=RunOptions())
    require_call(progress=False, watcher=None, options=None)
    found = problems_of(lambda: require_call(progress=1, watcher=print, options={}))
    assert [str(problem.where) for problem in found] == ["progress", "watcher", "options"]


def test_directories_are_checked_with_inputs_and_each_problem_names_its_task(folder: Path, tmp_path: Path) -> None:
    files = {"good": tiny_task(folder), "bad": tiny_task(folder, dataset={"max_length": 2})}
    directories = {"good": tmp_path / "good", "bad": tmp_path / "bad"}
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "notes.txt").touch()
    found = problems_of(lambda: existing_runs(files, directories, on_existing="resume"))
    assert {str(problem.where).partition(":")[0] for problem in found} == {"good", "bad"}
    assert any("notes.txt" in problem.found for problem in found)
    assert any("no usable row" in problem.found for problem in found)
    (tmp_path / "good" / "notes.txt").unlink()
    alone = {"good": files["good"]}
    assert existing_runs(alone, directories, on_existing="error") == frozenset()


def test_a_run_that_is_there_is_continued_replaced_or_an_error(folder: Path, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    file = tiny_task(folder)
    directory.task_file.write_text(file.resolved_yaml())
    (directory.root / ".lock").touch()
    places = {"mine": directory.root}
    for choice in ("resume", "overwrite"):
        assert existing_runs({"mine": file}, places, on_existing=choice) == {"mine"}
    (problem,) = problems_of(lambda: existing_runs({"mine": file}, places, on_existing="error"))
    assert f"cohort.resume({str(directory.root)!r})" in problem.hint
    # another task of that name is no reason to overwrite unasked
    other = tiny_task(folder, training={"max_steps": 9})
    (problem,) = problems_of(lambda: existing_runs({"mine": other}, places, on_existing="resume"))
    assert "training.max_steps" in str(problem.where)
    assert "on_existing='overwrite'" in problem.hint
    assert existing_runs({"mine": other}, places, on_existing="overwrite") == {"mine"}
