"""Trials that follow a plan of packs on two workers end as in one process, also when a worker dies in the middle."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import RankLostError
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.ranks.rank_process import RankProcess
from cohort.runs.packing_records import PackingRecord
from cohort.runs.reader import RunReader
from tests.end_to_end.tiny_tasks import Interrupting, Outcome, outcome_of, tiny_task, write_inputs

ONE = RunOptions(checkpoint_seconds=0.0, token_budget=40)
TWO = replace(ONE, num_ranks=2)
# 12 trials of unequal length: 54, 27 and 14 steps
GRID: dict[str, Any] = {
    "early_exit": "none",
    "evaluation": {"finalists": 0, "max_examples": 2},
    "training": {"max_steps": None, "num_train_epochs": 1},
    "search": {"space": {"learning_rate": [1e-3, 3e-2], "r": [2, 4], "batch_size": [1, 2, 4]}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> Outcome:
    tune(tiny_task(folder, **GRID), folder / "one", options=ONE)
    return result_of(folder / "one")


def result_of(run: Path) -> Outcome:
    """Everything but the order of decisions, which depends on who trains when."""
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


def chosen_in(run: Path) -> tuple[PackingRecord, ...]:
    with RunReader.open(run / "run.db") as reader:
        return reader.facts().packing_chosen or ()


def last_stop(run: Path) -> float:
    with RunReader.open(run / "run.db") as reader:
        return max(stay.stop_seconds or 0.0 for stay in reader.log.residencies())


def test_a_planned_grid_whose_worker_dies_has_the_bits_of_one_process(
    folder: Path, tmp_path: Path, expected: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RankProcess] = []
    begin = RankProcess.__init__

    def noted(self: RankProcess, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        started.append(self)

    monkeypatch.setattr(RankProcess, "__init__", noted)

    class Killing(Interrupting):
        def update(self, progress: RunProgress) -> None:
            done = sum(trial.steps_done for trial in progress.trials)
            if done >= 60 and started[0]._process.poll() is None:
                os.kill(started[0].process_id, signal.SIGKILL)

    run, watcher = tmp_path / "run", Killing()
    with pytest.raises(RankLostError):
        tune(tiny_task(folder, packing="planned", **GRID), run, options=TWO, watcher=watcher)
    (first,) = chosen_in(run)
    assert first.choice == "planned"
    assert sorted(trial_id for pack in first.packs for trial_id in pack.trial_ids) == list(range(12))
    assert any(note.startswith("packing: planned is planned; ") for note in watcher.notes)
    resume(run, options=TWO)
    _, again = chosen_in(run)
    # of the trials that were left alone, for what they had still to do
    assert {trial_id for pack in again.packs for trial_id in pack.trial_ids} <= set(range(12))
    assert again.planned_seconds is not None
    assert first.planned_seconds is not None
    assert again.planned_seconds < first.planned_seconds
    assert result_of(run) == expected
    assert "Plan of the packs" in (run / "report.html").read_text()


@pytest.mark.slow
def test_a_grid_by_plan_and_by_refill_on_two_workers(folder: Path, tmp_path: Path, expected: Outcome) -> None:
    ends = {}
    for packing in ("planned", "refill"):
        tune(tiny_task(folder, packing=packing, **GRID), tmp_path / packing, options=TWO)
        assert result_of(tmp_path / packing) == expected
        ends[packing] = last_stop(tmp_path / packing)
    (record,) = chosen_in(tmp_path / "planned")
    assert chosen_in(tmp_path / "refill") == ()
    assert record.planned_seconds is not None
    print(f"ends {ends}; predicted {record.planned_seconds:.2f} s after {record.at_seconds:.2f} s")
    assert ends["planned"] < 3 * (record.at_seconds + record.planned_seconds)


def test_what_the_last_comparison_leaves_is_planned(folder: Path, tmp_path: Path) -> None:
    sections = {"search": {"space": {"learning_rate": [1e-3, 1e-2, 3e-2], "r": [2, 4], "batch_size": [1, 2]}}}
    for name, packing, options in (("one", "refill", ONE), ("two", "planned", TWO)):
        tune(tiny_task(folder, packing=packing, **sections), tmp_path / name, options=options)
    assert result_of(tmp_path / "two") == result_of(tmp_path / "one")
    (record,) = chosen_in(tmp_path / "two")
    # half of twelve went on
    assert sum(len(pack.trial_ids) for pack in record.packs) == 6
    assert record.at_seconds > 0
