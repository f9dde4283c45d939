"""Trials that are stopped, resumed, kept, cloned and added while a run trains: no other trial's bits change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cohort.engine.session import Session
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.runs.requests.trial_requests import RequestKind, RequestSpool, TrialRequest
from cohort.tuning.trial_status import TrialStatus
from tests.end_to_end.tiny_tasks import Asking, Outcome, TickingClock, outcome_of, tiny_task, write_inputs

# room for two or three trials of six at a time
OPTIONS = RunOptions(token_budget=40)
# nothing couples the trials: what one does cannot matter to another
ALONE: dict[str, Any] = {"early_exit": "none"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def run_with(folder: Path, run: Path, *asks: tuple[int, Mapping[str, Any]], **sections: Any) -> Asking:
    asking = Asking(run, asks)
    tune(tiny_task(folder, **sections), run, watcher=asking, options=OPTIONS, clock=TickingClock())
    return asking


@pytest.fixture(scope="module")
def untouched(folder: Path) -> Outcome:
    """The same task, and nothing is asked of it."""
    run_with(folder, folder / "untouched", **ALONE)
    return outcome_of(folder / "untouched")


def trials_of(run: Path) -> dict[int, TrialRecord]:
    with RunReader.open(run / "run.db") as reader:
        return {trial.trial_id: trial for trial in reader.trials()}


def steps_of(outcome: Outcome, trial_id: int) -> list[tuple[str, ...]]:
    return [numbers for (number, _), numbers in sorted(outcome["steps"].items()) if number == trial_id]


def test_what_is_done_to_one_trial_changes_no_bit_of_another(folder: Path, tmp_path: Path, untouched: Outcome) -> None:
    run = tmp_path / "run"
    run_with(
        folder,
        run,
        (6, {"kind": "stop", "trial_id": 0}),
        (8, {"kind": "clone", "trial_id": 1, "values": {"learning_rate": 5e-3}}),
        (10, {"kind": "add", "values": {"r": 4, "learning_rate": 1e-2, "seed": 1}}),
        **ALONE,
    )
    outcome, trials = outcome_of(run), trials_of(run)
    assert sorted(trials) == list(range(8))
    for trial_id in range(1, 6):
        assert steps_of(outcome, trial_id) == steps_of(untouched, trial_id)
    done = trials[0].steps_done
    assert 0 < done < 8
    assert (trials[0].status, trials[0].reason) == (TrialStatus.STOPPED, "stopped by user")
    assert steps_of(outcome, 0) == steps_of(untouched, 0)[:done]
    assert dict(trials[6].parameters) == {"learning_rate": 5e-3, "r": 4, "lora_alpha": 8, "batch_size": 2}
    assert dict(trials[7].parameters) == {"learning_rate": 1e-2, "r": 4, "lora_alpha": 8, "batch_size": 2, "seed": 1}
    assert all(trials[number].status is TrialStatus.COMPLETED for number in (6, 7))
    # the same as alone
    space = {"learning_rate": [5e-3], "r": [4]}
    run_with(folder, tmp_path / "alone", **ALONE, search={"space": space})
    assert steps_of(outcome, 6) == steps_of(outcome_of(tmp_path / "alone"), 0)


def test_a_stopped_trial_goes_on_where_it_was(folder: Path, tmp_path: Path, untouched: Outcome) -> None:
    asks = (6, {"kind": "stop", "trial_id": 0}), (20, {"kind": "resume", "trial_id": 0})
    run_with(folder, tmp_path / "run", *asks, **ALONE)
    outcome = outcome_of(tmp_path / "run")
    assert (outcome["steps"], outcome["evaluations"]) == (untouched["steps"], untouched["evaluations"])
    assert outcome["adapters"] == untouched["adapters"]


def test_a_trial_that_a_rule_stopped_is_resumed_and_a_kept_one_is_not_stopped(folder: Path, tmp_path: Path) -> None:
    run_with(folder, tmp_path / "before")
    before = trials_of(tmp_path / "before")
    weak = [number for number, trial in before.items() if trial.status is TrialStatus.STOPPED]
    assert len(weak) >= 2
    kept, again = weak[0], weak[1]
    asks = (2, {"kind": "keep", "trial_id": kept}), (24, {"kind": "resume", "trial_id": again})
    asking = run_with(folder, tmp_path / "run", *asks)
    after = trials_of(tmp_path / "run")
    assert len(asking.asked) == 2
    for number in (kept, again):
        assert (after[number].status, after[number].steps_done) == (TrialStatus.COMPLETED, 8)
    # both have left the comparisons as if they had been stopped, so that these end as before
    for number, trial in before.items():
        if number not in (kept, again):
            assert (after[number].status, after[number].steps_done) == (trial.status, trial.steps_done)


@pytest.mark.parametrize("host_memory_bytes", [1 << 20, 0])
def test_a_trial_that_a_rule_stopped_goes_on_to_the_same_bits_with_and_without_its_state(
    folder: Path, tmp_path: Path, untouched: Outcome, host_memory_bytes: int
) -> None:
    early_exit = {"warmup_fraction": 0.25, "select_fraction": 0.34}
    # four of six end at the selection after two steps each; without room their states are gone, and trained again
    asking = Asking(tmp_path / "run", [(16, {"kind": "resume", "trial_id": 0})])
    options = RunOptions(token_budget=40, host_memory_bytes=host_memory_bytes)
    task = tiny_task(folder, early_exit=early_exit)
    tune(task, tmp_path / "run", watcher=asking, options=options, clock=TickingClock())
    assert [kind for _, kind in asking.asked] == ["resume"]
    assert sum(trial.status is TrialStatus.COMPLETED for trial in trials_of(tmp_path / "run").values()) < 6
    assert steps_of(outcome_of(tmp_path / "run"), 0) == steps_of(untouched, 0)


def test_a_warm_start_begins_with_the_best_weights(folder: Path, tmp_path: Path) -> None:
    cold = (30, {"kind": "clone", "trial_id": 0, "values": {"seed": 1}})
    warm = (30, {"kind": "clone", "trial_id": 0, "values": {"seed": 1}, "warm_start": True})
    run_with(folder, tmp_path / "run", cold, warm, **ALONE)
    outcome = outcome_of(tmp_path / "run")
    first_cold, first_warm = (float(steps_of(outcome, number)[0][0]) for number in (6, 7))
    assert first_warm < first_cold
    decisions = [text for text in outcome["decisions"] if '"add"' in text]
    assert '"from_trial": 0' in decisions[1]
    assert '"from_step"' not in decisions[0]


def test_a_task_of_a_shared_session_is_asked_like_any_other(folder: Path, tmp_path: Path, untouched: Outcome) -> None:
    session = Session(options=OPTIONS, clock=TickingClock())
    asking = Asking(tmp_path / "one", [(6, {"kind": "stop", "trial_id": 0}), (8, {"kind": "add"})])
    session.submit(tiny_task(folder, **ALONE), tmp_path / "one", name="one", watcher=asking)
    session.submit(tiny_task(folder, **ALONE), tmp_path / "other", name="other")
    session.run()
    assert len(asking.asked) == 2
    one, other = outcome_of(tmp_path / "one"), outcome_of(tmp_path / "other")
    assert trials_of(tmp_path / "one")[0].reason == "stopped by user"
    assert trials_of(tmp_path / "one")[6].status is TrialStatus.COMPLETED
    # trials of two tasks take turns, so that the order of decisions is another one
    for name in ("steps", "evaluations", "adapters", "best"):
        assert other[name] == untouched[name]
    for trial_id in range(1, 6):
        assert steps_of(one, trial_id) == steps_of(untouched, trial_id)


class Late(Asking):
    """Asks for a trial to be kept that has just done its last step."""

    def update(self, progress: RunProgress) -> None:
        if sum(trial.steps_done for trial in progress.trials) == 48 and not self.asked:
            self.asked.append((48, "keep"))
            request = TrialRequest(kind=RequestKind.KEEP, trial_id=0)
            RequestSpool(self.run / "requests").post(request, at=datetime.now(UTC))


def test_what_comes_too_late_is_answered(folder: Path, tmp_path: Path) -> None:
    late = Late(tmp_path / "run", [])
    tune(tiny_task(folder, **ALONE), tmp_path / "run", watcher=late, options=OPTIONS, clock=TickingClock())
    (answer,) = [json.loads(path.read_text()) for path in (tmp_path / "run" / "requests").iterdir()]
    assert "completed" in answer["problems"][0]["found"]


class Crashing(Asking):
    """Fails once what was asked has been done."""

    def update(self, progress: RunProgress) -> None:
        super().update(progress)
        if self.asked and sum(trial.steps_done for trial in progress.trials) >= 12:
            raise ZeroDivisionError


def test_what_is_lost_with_a_damaged_checkpoint_is_named(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    crashing = Crashing(run, [(6, {"kind": "stop", "trial_id": 0})])
    with pytest.raises(ZeroDivisionError):
        tune(tiny_task(folder, **ALONE), run, watcher=crashing, options=OPTIONS, clock=TickingClock())
    copy = shutil.copytree(run, tmp_path / "copy")
    *_, newest = sorted((run / "checkpoints").glob("*.json"))
    newest.write_bytes(b"{")
    for directory, status, count in ((copy, TrialStatus.STOPPED, 0), (run, TrialStatus.COMPLETED, 1)):
        asking = Asking(directory, [])
        resume(directory, watcher=asking, options=OPTIONS)
        assert trials_of(directory)[0].status is status
        assert sum("came after the checkpoint" in note for note in asking.notes) == count
