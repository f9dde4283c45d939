"""What an engine gives its tasks; whole runs from Python are tested end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from cohort.api import Engine, load, resume, run, tune
from cohort.api.task_checks import require_call
from cohort.core.errors import InputError
from cohort.tasks.loading import TaskFile, load_task
from cohort.tasks.overrides import parse_overrides
from cohort.tasks.task import Task
from cohort.tuning.early_exit.settings import EarlyExitSettings
from tests.cli.tiny_task import write_tiny_task


def _task(tmp_path: Path, num_gpus: int | Literal["auto"]) -> Task:
    (tmp_path / "train.jsonl").touch()
    return Task(name="mine", model="owner/model", dataset=tmp_path / "train.jsonl", num_gpus=num_gpus)


def test_a_task_gets_no_gpu_that_the_engine_has_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"num_gpus: found 1; allowed: at most 0"):
        Engine(total_gpus=0).run([_task(tmp_path, 1)])


@pytest.mark.parametrize(
    ("total_gpus", "asked", "given"),
    [(1, 0, 0), ("auto", 1, 1), (0, "auto", 0), ("auto", "auto", "auto"), (2, "auto", "auto")],
)
def test_a_task_without_gpus_of_its_own_gets_the_engines(
    tmp_path: Path, *, total_gpus: int | str, asked: int | Literal["auto"], given: int | str
) -> None:
    assert Engine(total_gpus=total_gpus)._file_of(_task(tmp_path, asked), None).num_gpus == given


@pytest.mark.parametrize("name", ["../x", "..", ".", "", "a/b", "/etc", "a\\b", "a\0b"])
def test_a_name_stays_in_the_parent_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="Task: name: found"):
        Task(name=name, model="owner/model", dataset=tmp_path / "train.jsonl")


def test_a_directory_given_by_its_way_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows" / "inner").mkdir(parents=True)
    (tmp_path / "rows" / "train.jsonl").touch()
    monkeypatch.chdir(tmp_path / "rows" / "inner")
    assert Task(model="owner/model", dataset="..").name == "rows"


def test_one_task_on_more_gpus_than_there_are_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match=r"total_gpus: found 4, but torch can use none here; .*Write total_gpus=0"):
        Engine(total_gpus=4).run([_task(tmp_path, "auto")])
    with pytest.raises(InputError, match="total_gpus: found 1, but torch can use none here"):
        Engine(total_gpus=1).run(_task(tmp_path, "auto"))


def test_a_directory_that_is_taken_is_named_as_python_names_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=r"^run_directory .*notes\.txt"):
        Engine(total_gpus=0).run(_task(tmp_path, "auto"), run_directory=tmp_path)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Engine(gpus=2), r"Engine: gpus: found 2, an unknown argument; .*Write total_gpus="),  # type: ignore[call-arg]
        (lambda: Engine(early_exit=2), r"Give it to Engine\.run"),  # type: ignore[call-arg]
        (lambda: Engine(total_gpus=0).run(5), "tasks: found a value of type int; allowed: a cohort.Task"),  # type: ignore[call-overload]
        (lambda: Engine(total_gpus=0).run(["a"]), "tasks: found a value of type str"),  # type: ignore[list-item]
        (lambda: run([], on_exsting=1), r"run: on_exsting: .*Did you mean on_existing\?"),  # type: ignore[call-overload]
        (lambda: run([], on_existing="replace"), "on_existing: found 'replace'"),  # type: ignore[call-overload]
        (lambda: run([], early_exit="none"), "early_exit: found 'none'; allowed: a cohort.EarlyExit"),  # type: ignore[call-overload]
        (lambda: load(), "load: run_directory: found nothing"),  # type: ignore[call-arg]
        (lambda: load(5), "load: run_directory: found a value of type int; allowed: a path"),  # type: ignore[arg-type]
        (lambda: resume("\0"), "resume: run_directory: found"),
        (lambda: load_task(5), "load_task: path: found 5"),  # type: ignore[arg-type]
        (
            lambda: require_call(progress="yes", watcher=5, options=None),
            r"progress: found a value of type str; allowed: True, False or None(.|\n)*watcher: found",
        ),
        (lambda: tune(5, "runs"), "what cohort.load_task returns"),  # type: ignore[arg-type]
        (lambda: load_task("a.yaml", override=[]), r"Did you mean overrides\?"),  # type: ignore[call-arg]
        (lambda: parse_overrides("--a b", model=TaskFile), "allowed: a list of texts"),
        (lambda: parse_overrides([3], model=TaskFile), "allowed: a list of texts"),  # type: ignore[list-item]
        (lambda: run([], output_dir="x"), r"Write run_directory=\.\.\."),  # type: ignore[call-overload]
        (lambda: run([], out="x"), r"Write run_directory=\.\.\."),  # type: ignore[call-overload]
        (lambda: run([], overwrite_output_dir=True), r"Write on_existing='overwrite'"),  # type: ignore[call-overload]
        (lambda: run([], resume_from_checkpoint="x"), r"on_existing='resume', the default"),  # type: ignore[call-overload]
        (lambda: resume(output_dir="x"), r"Write run_directory=\.\.\."),  # type: ignore[call-arg]
        (lambda: resume("x", verbose=True), r"Write progress=True"),  # type: ignore[call-arg]
        (lambda: load(folder="x"), r"Write run_directory=\.\.\."),  # type: ignore[call-arg]
        # it has no progress to show
        (lambda: load("x", verbose=True), r"verbose: .*Choose one of these or remove it"),  # type: ignore[call-arg]
        (lambda: run([], max_steps=1), r"It belongs to the cohort\.Task\. Write training="),  # type: ignore[call-overload]
        (lambda: run([], callbacks=[]), r"Write on_step="),  # type: ignore[call-overload]
        (lambda: run([], num_gpus=1), r"Write total_gpus="),  # type: ignore[call-overload]
        (lambda: run("task.yaml"), r"Write cohort\.tune\(cohort\.load_task\(PATH\)"),  # type: ignore[arg-type]
        (lambda: run({}), r"Write list\(tasks\)"),  # type: ignore[call-overload]
        (lambda: load("nothing-here"), r"nothing-here: found nothing; .*cohort\.run made"),
        (lambda: load(""), "run_directory: found ''"),
        (lambda: load("a" * 300), "names of at most 255 bytes"),
        (lambda: Engine().session(option=3), "Engine.session: option"),  # type: ignore[call-arg]
        (lambda: Engine().session(options=3), "options: found a value of type int"),  # type: ignore[arg-type]
        (lambda: Engine().session().submit(3), "submit: task: found a value of type int"),  # type: ignore[arg-type]
        (lambda: EarlyExitSettings().kept_at("a"), "share: found 'a'; allowed: 0 to 1"),  # type: ignore[arg-type]
    ],
)
def test_wrong_calls_are_input_errors(call: Callable[[], object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        call()


def test_a_task_of_a_file_names_a_taken_directory_as_python_does(tmp_path: Path) -> None:
    task = load_task(write_tiny_task(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError) as caught:
        tune(task, tmp_path)
    assert str(caught.value).startswith(f"run_directory {tmp_path}: found a directory with files that are not a run's")


def test_a_number_of_gpus_may_be_numpys(tmp_path: Path) -> None:
    assert Engine(total_gpus=np.int64(0))._file_of(_task(tmp_path, "auto"), None).num_gpus == 0  # type: ignore[arg-type]
