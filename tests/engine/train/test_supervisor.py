"""What happens to trials between steps: evaluated when due, parked, restored, reloaded, and saved within a share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.checkpoints.checkpoints import latest_good_checkpoint
from cohort.core.clock import ManualClock
from cohort.core.events import StepDone
from cohort.runs.facts import Activity
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.trial_status import TrialStatus
from tests.engine.train.fakes import FakeExecutor, Task, spec_of
from tests.tuning.loss_curves import by_rank


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def executor(clock: ManualClock) -> FakeExecutor:
    return FakeExecutor(clock)


def step(task: Task, executor: FakeExecutor, *, seconds: float = 1.0) -> None:
    task.supervisor.took_step(executor.step(executor.resident), [], seconds=seconds)


def test_residents_are_evaluated_at_their_steps_and_decided_about(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1, num_steps=2)], clock=clock)
    for trial_id in (0, 1):
        assert task.supervisor.enter(trial_id) is None
    step(task, executor)
    assert task.evaluated == []
    step(task, executor)
    assert task.evaluated == [{0: 2, 1: 2}]
    assert executor.resident == (0,)
    assert task.supervisor.take_vacated() == [1]
    assert task.supervisor.take_vacated() == []
    status = {trial.trial_id: trial.status for trial in task.run.store.reader.trials()}
    assert status == {0: TrialStatus.RUNNING, 1: TrialStatus.COMPLETED}
    best = task.run.state_store.best(1)
    assert best is not None
    assert torch.equal(best[0], torch.full((2, 4), 2.0))
    assert best[1] == 2


def test_events_are_observed_by_trial_whatever_slots_they_have(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1)], clock=clock)
    for trial_id in (1, 0):
        task.supervisor.enter(trial_id)
    task.supervisor.took_step(executor.step((1, 0)), [], seconds=1.0)
    ((events, _),) = task.ticks
    assert [event.trial_id for event in events] == [0, 1]


def test_a_trial_that_waits_for_others_is_parked_and_the_loser_is_never_fetched(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    halves = by_rank(select_fraction=0.5, reselect_fraction=1.0)
    task = Task(tmp_path / "run", executor, [spec_of(n, num_steps=8) for n in range(2)], clock=clock, early_exit=halves)
    task.supervisor.enter(0)
    for _ in range(2):
        step(task, executor)
    # trial 0 waits at the end of warm-up for the other
    assert executor.resident == ()
    parked = task.run.state_store.state(0)
    assert parked is not None
    assert parked.step == 2
    task.supervisor.enter(1)
    for _ in range(2):
        step(task, executor)
    kinds = {(decision.trial_id, decision.kind) for _, decisions in task.ticks for decision in decisions}
    assert (1, DecisionKind.STOP) in kinds
    assert task.run.state_store.state(1) is None
    assert [request.trial_id for request in task.supervisor.runnable()] == [0]


def test_a_restored_run_holds_what_it_held(tmp_path: Path, clock: ManualClock, executor: FakeExecutor) -> None:
    specs = [spec_of(0), spec_of(1)]
    task = Task(tmp_path / "run", executor, specs, clock=clock)
    for trial_id in (0, 1):
        task.supervisor.enter(trial_id)
    step(task, executor)
    task.supervisor.checkpoint()
    before = executor.state(1)
    for trial_id in (0, 1):
        executor.drop(trial_id)

    manifest, problems = latest_good_checkpoint(task.run.store, task.run.state_store, directory=task.run.directory)
    assert manifest is not None
    assert problems == []
    task.supervisor.restore(manifest)
    assert executor.resident == (0, 1)
    assert executor.steps_of(1) == before.step == 1
    assert torch.equal(executor.weights(1), before.adapter.weights)


def test_a_smaller_machine_restores_what_fits_and_lets_the_others_wait(tmp_path: Path, clock: ManualClock) -> None:
    executor = FakeExecutor(clock, num_slots=1)
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1)], clock=clock)
    for trial_id in (0, 1):
        task.supervisor.enter(trial_id)
    task.supervisor.checkpoint()
    manifest, _ = latest_good_checkpoint(task.run.store, task.run.state_store, directory=task.run.directory)
    assert manifest is not None
    for trial_id in (0, 1):
        executor.drop(trial_id)
    task.supervisor.restore(manifest)
    assert executor.resident == (0,)
    assert 1 in [request.trial_id for request in task.supervisor.runnable()]


def test_steps_that_are_done_again_are_not_recorded_twice(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0)], clock=clock)
    task.supervisor.enter(0)
    for _ in range(3):
        step(task, executor)
    # nothing was saved since it began: it begins again
    task.supervisor.reload(0)
    assert executor.steps_of(0) == 0
    for _ in range(4):
        step(task, executor)
    steps = [event.step for events, _ in task.ticks for event in events if isinstance(event, StepDone)]
    assert steps == [1, 2, 3, 4]
    assert task.evaluated == [{0: 2}, {0: 4}]


def test_a_checkpoint_records_the_seconds_spent(tmp_path: Path, clock: ManualClock, executor: FakeExecutor) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0)], clock=clock)
    task.supervisor.enter(0)
    for _ in range(2):
        step(task, executor, seconds=1.5)
        task.supervisor.checkpoint()
    assert task.run.store.reader.facts().seconds[Activity.TRAIN] == pytest.approx(3.0)


def test_residents_that_a_window_brought_to_an_evaluation_are_evaluated_together(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1)], clock=clock)
    for trial_id in (0, 1):
        task.supervisor.enter(trial_id)
    step(task, executor)
    task.supervisor.evaluate_reached()
    assert task.evaluated == []
    executor.step(executor.resident)
    task.supervisor.evaluate_reached()
    assert task.evaluated == [{0: 2, 1: 2}]
