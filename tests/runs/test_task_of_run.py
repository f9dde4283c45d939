"""The task of a run is found with its inputs where they are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import RunPlaces
from cohort.runs.facts import RunFacts
from cohort.runs.task_of_run import load_run_task, read_run_task


def begun(folder: Path) -> RunDirectory:
    """Return a run in ``folder`` whose task names a model and rows next to it."""
    (folder / "model").mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
    directory = RunDirectory.create(folder / "run")
    directory.task_file.write_text(
        f"model_name_or_path: {folder / 'model'}\n"
        f"dataset: {{train: {folder / 'train.jsonl'}, validation: 0.5}}\n"
        "search: {space: {learning_rate: [1e-3, 1e-2]}}\n"
    )
    return directory


def recorded(directory: RunDirectory) -> RunFacts:
    return RunFacts(places=RunPlaces(run_directory=str(directory.root.resolve())))


def test_inputs_that_stayed_are_used_where_they_are(tmp_path: Path) -> None:
    directory = begun(tmp_path / "before")
    task = load_run_task(directory, facts=recorded(directory))
    assert task.model_name_or_path == str(tmp_path / "before" / "model")


def test_inputs_that_moved_with_the_run_are_found_relative_to_it(tmp_path: Path) -> None:
    facts = recorded(begun(tmp_path / "before"))
    after = (tmp_path / "before").rename(tmp_path / "after")
    directory = RunDirectory(after / "run")
    assert load_run_task(directory, facts=facts).dataset.train == (str(after / "train.jsonl"),)
    assert read_run_task(directory, facts=facts).model_name_or_path == str(after / "model")


def test_inputs_that_are_gone_are_all_named_with_the_option_that_says_where(tmp_path: Path) -> None:
    facts = recorded(begun(tmp_path / "before"))
    run = (tmp_path / "before" / "run").rename(tmp_path / "alone")
    (tmp_path / "before").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError) as caught:
        load_run_task(RunDirectory(run), facts=facts)
    assert [problem.hint.partition("--")[2] for problem in caught.value.problems] == [
        "model_name_or_path PATH",
        "dataset.train PATH",
    ]
    with pytest.raises(InputError, match="model_name_or_path"):
        read_run_task(RunDirectory(run), facts=facts)
    places = [f"--{key}={tmp_path / 'elsewhere' / name}" for key, name in
              (("model_name_or_path", "model"), ("dataset.train", "train.jsonl"))]  # fmt: skip
    task = load_run_task(RunDirectory(run), facts=facts, places=places)
    assert task.model_name_or_path == str(tmp_path / "elsewhere" / "model")


def test_nothing_but_places_can_be_set(tmp_path: Path) -> None:
    directory = begun(tmp_path / "before")
    with pytest.raises(InputError, match="would change the task of a run"):
        load_run_task(directory, facts=recorded(directory), places=["--training.max_steps", "9"])
