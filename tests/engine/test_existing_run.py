"""A directory that holds a run already: the same task on the same inputs, or what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cohort.core.errors import Problem, RunStateError
from cohort.engine.existing_run import places_of, remove_run, same_run_problems
from cohort.prepare.fingerprints import model_fingerprint
from cohort.prepare.inputs import read_inputs
from cohort.prepare.record_facts import row_facts
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import TaskFacts
from cohort.runs.store import RunStore
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, and a run directory with the record that a run on them begins with."""
    folder = write_inputs(tmp_path_factory.mktemp("begun"))
    directory, task = RunDirectory.create(folder / "run"), tiny_task(folder)
    directory.task_file.write_text(task.resolved_yaml())
    inputs = read_inputs(task)
    with closing(RunStore.create(directory.database)) as store:
        facts = replace(row_facts(inputs.data), model_hash=model_fingerprint(inputs.model_directory))
        store.set_facts(task=TaskFacts(document=task.model_dump(mode="json")), inputs=facts)
    return folder


@pytest.fixture
def folder(begun: Path) -> Any:
    """The inputs, put back as they were after each test."""
    kept = {path: path.read_bytes() for path in (begun / "train.jsonl", begun / "model" / "model.safetensors")}
    yield begun
    for path, content in kept.items():
        path.write_bytes(content)


def problems_of(folder: Path, **sections: Any) -> list[Problem]:
    task = tiny_task(folder, **sections)
    return same_run_problems(RunDirectory(folder / "run"), task, read_inputs(task), hint="Begin another.")


def test_the_same_task_has_nothing_against_it(folder: Path) -> None:
    assert problems_of(folder) == []
    # a key that is written out as its default is no difference
    assert problems_of(folder, training={"weight_decay": 0.01}) == []


def test_another_value_is_named_with_the_callers_hint(folder: Path) -> None:
    (problem,) = problems_of(folder, training={"max_steps": 9})
    assert "training.max_steps" in str(problem.where)
    assert (problem.found, problem.hint) == ("9", "Begin another.")
    assert "8" in problem.allowed


def test_other_rows_and_other_weights_are_named_together(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    changed = [{**row, "prompt": f" {row['prompt']}"} for row in rows]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    weights = load_file(folder / "model" / "model.safetensors")
    weights["model.norm.weight"] += 0.5
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    found = problems_of(folder)
    assert {problem.hint for problem in found} == {"Begin another."}
    keys = " ".join(str(problem.where) for problem in found)
    assert "dataset.train" in keys
    assert "model_name_or_path" in keys
    assert "other weights or another configuration" in found[-1].found


def test_a_run_that_was_killed_before_its_first_checkpoint_compares_the_task_alone(folder: Path) -> None:
    run = folder / "run"
    database = run / "run.db"
    shutil.move(database, folder / "kept.db")
    try:
        (folder / "train.jsonl").write_text((folder / "train.jsonl").read_text() * 2)
        assert problems_of(folder) == [], "nothing was trained on the rows of then"
        assert len(problems_of(folder, training={"max_steps": 9})) == 1
    finally:
        shutil.move(folder / "kept.db", database)


def test_places_are_arguments_of_a_resume(folder: Path) -> None:
    directory, task = RunDirectory(folder / "run"), tiny_task(folder)
    places = dict(place.removeprefix("--").split("=", 1) for place in places_of(task, directory))
    assert json.loads(places["model_name_or_path"]) == str(folder / "model")
    assert json.loads(places["dataset.train"]) == str(folder / "train.jsonl")
    # a share of the rows has no place
    assert "dataset.validation" not in places


def test_a_finished_run_is_asked_for_its_model_alone(folder: Path, tmp_path: Path) -> None:
    directory = RunDirectory(Path(shutil.copytree(folder / "run", tmp_path / "run")))
    with closing(RunStore.resume(directory.database)) as store:
        store.set_facts(are_results_written=True)
    (place,) = places_of(tiny_task(folder), directory)
    assert place.startswith("--model_name_or_path=")


def test_all_of_a_run_is_removed_but_what_it_links_to(tmp_path: Path) -> None:
    directory, outside = RunDirectory.create(tmp_path / "run"), tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    directory.task_file.write_text("")
    (directory.trials / "0000").mkdir(parents=True)
    (directory.root / "link").symlink_to(outside)
    with directory.lock(), pytest.raises(RunStateError, match="process"):
        remove_run(RunDirectory(directory.root))
    assert directory.task_file.exists()
    remove_run(directory)
    assert list(directory.root.iterdir()) == [directory.lock().path]
    assert (outside / "mine.txt").read_text() == "mine"
    # another run may begin there
    assert RunDirectory.find_problem(directory.root) is None


def test_a_kill_while_a_run_is_removed_leaves_one_that_can_be_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(Path(shutil.copytree(folder / "run", tmp_path / "run")))
    rmtree, unlink, calls = shutil.rmtree, Path.unlink, 0

    def counted(act: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            nonlocal calls
            act(*arguments, **options)
            calls += 1
            raise KeyboardInterrupt

        return call

    monkeypatch.setattr(shutil, "rmtree", counted(rmtree))
    monkeypatch.setattr(Path, "unlink", counted(unlink))
    while directory.holds_run():
        # neither a copy of its database nor any other file is taken for a run that goes on
        assert not calls or not directory.checkpoints.exists()
        assert calls < 1000
        with pytest.raises(KeyboardInterrupt):
            remove_run(directory)
    assert calls > 3
    assert list(directory.root.iterdir()) == [directory.lock().path]
