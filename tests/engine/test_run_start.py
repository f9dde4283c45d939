"""How a run begins: its threads, its notes, its directory, and the first entries of its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import InputError
from cohort.engine import run_start
from cohort.engine.run_start import begun_run, new_directory, open_state_store, prepare_task
from cohort.engine.train.open_run import RunConditions, RunOptions
from cohort.prepare.preparation import Preparation
from cohort.runs.directory import RunDirectory
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.engine.train.fakes import Notes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def prepared(folder: Path, *, watcher: Notes | None = None, **keys: Any) -> Preparation:
    return prepare_task(tiny_task(folder), RunConditions(watcher=watcher or Notes()), **keys)


def test_what_it_will_run_on_is_noted_first(folder: Path) -> None:
    watcher = Notes()
    preparation = prepared(folder, watcher=watcher)
    assert watcher.notes[0].startswith("6 trials on cpu (")
    assert "products: " in watcher.notes[0]
    warned = [f"warning: {warning}" for warning in preparation.warnings]
    assert warned, "six validation rows are few"
    assert watcher.notes[1:] == [*preparation.notes, *warned]
    assert watcher.snapshots[0].phase == "reading and tokenising the data"


def test_a_resumed_run_keeps_its_threads_and_only_a_first_task_settles_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[bool] = []
    monkeypatch.setattr(run_start, "settle_thread_count", lambda _name, *, on_cpu: settled.append(on_cpu))
    before, first = torch.get_num_threads(), prepared(folder)
    begun = replace(first.facts, machine=replace(first.facts.machine, threads=before + 1))
    settled.clear()
    try:
        assert prepared(folder, begun=begun).facts.machine.threads == before + 1
        assert settled == []
    finally:
        torch.set_num_threads(before)
    prepared(folder)
    prepared(folder, backbone=first.backbone)
    assert settled == [True]


def test_a_run_has_begun_with_its_trials_a_checkpoint_and_its_inputs(folder: Path, tmp_path: Path) -> None:
    preparation = prepared(folder)
    with new_directory(tmp_path / "run", preparation.task) as directory:
        assert directory.task_file.read_text() == preparation.task.resolved_yaml()
        with begun_run(preparation, directory, RunConditions(watcher=Notes())) as run:
            reader = run.store.reader
            facts = reader.facts()
            assert (facts.task_name, facts.inputs) == ("run", preparation.facts.inputs)
            assert len(reader.trials()) == 6
            assert len(reader.checkpoints()) == 1


def test_an_occupied_directory_is_refused_and_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="files that are not a run's"), new_directory(tmp_path, tiny_task(folder)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_tasks_share_the_memory_for_parked_states(folder: Path, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run")
    conditions = RunConditions(options=RunOptions(host_memory_bytes=900), num_tasks=3)
    store = open_state_store(prepared(folder), directory, conditions)
    assert store._memory_budget_bytes == 300
