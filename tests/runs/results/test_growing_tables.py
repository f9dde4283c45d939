"""The tables of a run while it trains: there from the start, growing, and without a row twice after a kill."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cohort.core import durable_files
from cohort.core.clock import ManualClock
from cohort.core.events import StepDone
from cohort.runs.directory import RunDirectory
from cohort.runs.records import TrialRecord
from cohort.runs.results.growing_tables import GrowingTables
from cohort.runs.store import RunStore


def _steps(store: RunStore, *steps: int) -> None:
    for step in steps:
        done = [
            StepDone(trial_id=n, step=step, loss=1.0, grad_norm=0.5, learning_rate=1e-4, num_tokens=10) for n in (0, 1)
        ]
        store.append(done)


def _seen(directory: RunDirectory) -> list[tuple[int, int]]:
    lines = map(json.loads, directory.metrics_jsonl.read_text().splitlines())
    return [(line["step"], line["trial"]) for line in lines]


def _trained(directory: RunDirectory) -> list[str]:
    with directory.results_csv.open(newline="") as stream:
        return [row["steps"] for row in csv.DictReader(stream)]


def test_tables_grow_and_a_resume_repeats_no_row(tmp_path: Path) -> None:
    directory, clock = RunDirectory.create(tmp_path / "run"), ManualClock()
    store = RunStore.create(directory.database, clock=clock)
    store.add_trials([TrialRecord(trial_id=n, parameters={"r": 8 + n}, planned_steps=9, seed=0) for n in (0, 1)])
    tables = GrowingTables(directory, reader=store.reader, clock=clock)
    assert (_seen(directory), _trained(directory)) == ([], ["0", "0"])
    _steps(store, 1, 2)
    kept = store.position
    tables.update()
    assert _seen(directory) == []
    clock.advance(10.0)
    tables.update()
    assert (_seen(directory), _trained(directory)) == ([(1, 0), (1, 1), (2, 0), (2, 1)], ["2", "2"])
    _steps(store, 3)
    tables.update(now=True)
    assert _trained(directory) == ["3", "3"]
    store.close()

    # a kill in the middle of a line, and a checkpoint that lies further back
    with directory.metrics_jsonl.open("a") as stream:
        stream.write('{"trial": 0, "st')
    store = RunStore.resume(directory.database, clock=clock)
    store.truncate_after(kept)
    tables = GrowingTables(directory, reader=store.reader, clock=clock)
    assert (_seen(directory), _trained(directory)) == ([(1, 0), (1, 1), (2, 0), (2, 1)], ["2", "2"])
    _steps(store, 3)
    tables.update(now=True)
    assert _seen(directory) == [(step, trial) for step in (1, 2, 3) for trial in (0, 1)]
    store.close()


def test_training_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, clock = RunDirectory.create(tmp_path / "run"), ManualClock()
    store = RunStore.create(directory.database, clock=clock)
    store.add_trials([TrialRecord(trial_id=0, parameters={"r": 8}, planned_steps=9, seed=0)])
    tables = GrowingTables(directory, reader=store.reader, clock=clock)
    flushed: list[Path] = []
    monkeypatch.setattr(durable_files, "flush_to_disk", lambda path: flushed.append(Path(path)))
    clock.advance(10.0)
    tables.update()
    assert flushed == []
    # what a stop leaves is on the disk
    tables.update(now=True)
    assert flushed
    store.close()
