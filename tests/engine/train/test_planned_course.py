"""When a task's trials follow a plan, and when their slots are refilled."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.train import planned_course
from cohort.engine.tune import RunOptions, tune
from cohort.runs.packing_records import PackingRecord
from cohort.runs.reader import RunReader
from tests.end_to_end.tiny_tasks import Interrupting, tiny_task, write_inputs

GRID = {
    "early_exit": "none",
    "evaluation": {"finalists": 0, "max_examples": 1},
    "training": {"max_steps": 2},
    "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [2]}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def chosen(run: Path) -> tuple[PackingRecord, ...]:
    with RunReader.open(run / "run.db") as reader:
        return reader.facts().packing_chosen or ()


def test_one_executor_refills_its_slots_unless_a_plan_is_asked_for(folder: Path, tmp_path: Path) -> None:
    watcher = Interrupting()
    tune(tiny_task(folder, **GRID), tmp_path / "auto", watcher=watcher)
    assert chosen(tmp_path / "auto") == ()
    assert not any("packing:" in note for note in watcher.notes)
    tune(tiny_task(folder, packing="planned", **GRID), tmp_path / "planned", watcher=watcher)
    (record,) = chosen(tmp_path / "planned")
    assert record.choice == "planned"
    assert {trial_id for pack in record.packs for trial_id in pack.trial_ids} == {0, 1}
    # how many follows from what steps took in runs before, which other tests make
    count = len(record.packs)
    said = f"packing: planned is planned; {count} planned pack{'s' if count > 1 else ''} predicted"
    assert any(note.startswith(said) for note in watcher.notes)


def test_a_plan_without_a_solver_is_refused_before_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_course, "has_solver", lambda: False)
    with pytest.raises(InputError, match="pip install ortools") as refused:
        tune(tiny_task(folder, packing="planned", **GRID), tmp_path / "run", options=RunOptions())
    assert refused.value.problems[0].where.key == ("packing",)
    # nothing else asks for it
    tune(tiny_task(folder, **GRID), tmp_path / "other", options=RunOptions())
