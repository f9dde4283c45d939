"""Checkpoints that are due hold up no step, and a kill before they are complete goes back to the one before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.checkpoints import state_writer
from cohort.checkpoints.checkpoints import latest_good_checkpoint
from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core import durable_files
from cohort.core.clock import ManualClock
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.time_left import TimeLeft
from cohort.runs.store import RunStore
from cohort.training.checkpoint import write_state
from tests.engine.train.fakes import FakeExecutor, Task, spec_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that takes nothing until the event."""
    is_ready = threading.Event()

    def slow(*values: Any, **keys: Any) -> None:
        assert is_ready.wait(10)
        write_state(*values, **keys)

    monkeypatch.setattr(state_writer, "write_state", slow)
    yield is_ready
    is_ready.set()


def task_of(path: Path, clock: ManualClock, **options: Any) -> tuple[Task, FakeExecutor]:
    executor = FakeExecutor(clock)
    task = Task(path, executor, [spec_of(0, num_steps=80)], clock=clock, options=RunOptions(**options))
    task.supervisor.enter(0)
    return task, executor


def step(task: Task, executor: FakeExecutor) -> None:
    task.supervisor.took_step(executor.step([0]), [], seconds=1.0)


def positions(task: Task) -> list[int]:
    return [record.position for record in task.run.store.reader.checkpoints()]


def step_of_last(task: Task) -> int:
    """Return the step that another process would go on from."""
    clock = ManualClock()
    store = RunStore.resume(task.run.store.path, clock=clock)
    states = TrialStateStore(task.run.directory, memory_budget_bytes=1 << 20)
    manifest, problems = latest_good_checkpoint(store, states, directory=task.run.directory)
    assert problems == []
    assert manifest is not None
    store.truncate_after(manifest.position)
    state = states.state(0)
    assert state is not None
    assert state.step == state.adapter.weights[0, 0].item() == store.reader.log.steps(0)[-1].step
    return state.step


def test_one_that_is_due_holds_up_no_step(tmp_path: Path, clock: ManualClock, disk: threading.Event) -> None:
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=3.0)
    for _ in range(6):
        step(task, executor)
        task.supervisor.checkpoint_when_due()
    assert positions(task) == []
    disk.set()
    while not positions(task):
        time.sleep(0.001)
        task.supervisor.checkpoint_when_due()
    # what it began with, three steps before
    assert step_of_last(task) == 3
    assert executor.steps_of(0) == 6


def test_a_kill_before_it_is_complete_goes_back_to_the_one_before(
    tmp_path: Path, clock: ManualClock, disk: threading.Event
) -> None:
    disk.set()
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=3.0)
    step(task, executor)
    task.supervisor.checkpoint()
    disk.clear()
    for _ in range(4):
        step(task, executor)
        task.supervisor.checkpoint_when_due()
    disk.set()
    assert step_of_last(task) == 1


def test_one_that_somebody_waits_for_takes_the_place_of_one_that_was_begun(
    tmp_path: Path, clock: ManualClock, disk: threading.Event
) -> None:
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=2.0)
    for _ in range(3):
        step(task, executor)
        task.supervisor.checkpoint_when_due()
    threading.Timer(0.02, disk.set).start()
    task.supervisor.checkpoint()
    assert positions(task) == [task.run.store.position]
    assert step_of_last(task) == 3
    # what only the other one would have named is gone
    assert [path.name for path in sorted(task.run.directory.trial(0).iterdir())] == [
        "best-000002.safetensors",
        "state-000003.safetensors",
    ]


def test_a_trial_that_is_parked_meanwhile_keeps_its_state(
    tmp_path: Path, clock: ManualClock, disk: threading.Event
) -> None:
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=1.0)
    step(task, executor)
    task.supervisor.checkpoint_when_due()
    task.supervisor.evict(0)
    disk.set()
    while not positions(task):
        time.sleep(0.001)
        task.supervisor.checkpoint_when_due()
    parked = task.run.state_store.state(0)
    assert parked is not None
    assert parked.step == 1
    assert step_of_last(task) == 1


def test_they_become_rarer_where_they_take_long(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=10.0, checkpoint_share=0.1)
    start = task.run.state_store.start_files

    def slow(**keys: Any) -> Any:
        clock.advance(3.0)
        return start(**keys)

    monkeypatch.setattr(task.run.state_store, "start_files", slow)
    begun = []
    for second in range(1, 42):
        step(task, executor)
        before = clock.monotonic()
        task.supervisor.checkpoint_when_due()
        if clock.monotonic() > before:
            begun.append(second)
        while len(positions(task)) < len(begun):
            time.sleep(0.001)
            task.supervisor.checkpoint_when_due()
    # after 10 s, then after 30 s more: 3 s are a tenth of them
    assert begun == [10, 40]


def test_one_that_was_begun_has_the_best_checkpoint_of_a_trial_that_is_forgotten_meanwhile(
    tmp_path: Path, clock: ManualClock, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one writer, so that the second file waits for its turn
    monkeypatch.setattr(state_writer, "state_threads", lambda name: ThreadPoolExecutor(1, thread_name_prefix=name))
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=2.0)
    for _ in range(2):
        step(task, executor)
    states = task.run.state_store
    for trial_id in (7, 8):
        states.put_best(trial_id, torch.full((2, 3), float(trial_id)), step=1)
    task.supervisor.checkpoint_when_due()
    # as where save_total_limit keeps none of trials that lost
    states.forget_best(8)
    disk.set()
    while not positions(task):
        time.sleep(0.001)
        task.supervisor.checkpoint_when_due()
    assert step_of_last(task) == 2


def test_ctrl_c_while_one_is_completed_leaves_it_to_be_completed(
    tmp_path: Path, clock: ManualClock, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=100.0)
    step(task, executor)
    task.supervisor.begin_last_checkpoint()

    def interrupted(_self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            task.supervisor.complete_last_checkpoint()
    disk.set()
    task.supervisor.complete_last_checkpoint()
    assert step_of_last(task) == 1


def test_a_checkpoint_is_recorded_with_the_time_of_what_it_holds(
    tmp_path: Path, clock: ManualClock, disk: threading.Event
) -> None:
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=2.0)
    for _ in range(3):
        step(task, executor)
        task.supervisor.checkpoint_when_due()
    disk.set()
    while not positions(task):
        time.sleep(0.001)
        task.supervisor.checkpoint_when_due()
    assert [record.seconds for record in task.run.store.reader.checkpoints()] == [2.0]


def test_none_is_begun_where_training_is_over_soon(tmp_path: Path, clock: ManualClock, disk: threading.Event) -> None:
    disk.set()
    # due after 76 of 80 steps of a second each, and the end is there before a quarter of that time has passed
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=76.0)
    for _ in range(79):
        step(task, executor)
        task.supervisor.checkpoint_when_due()
    assert not [*task.run.directory.trials.glob("*/state-*")]
    step(task, executor)
    task.supervisor.begin_last_checkpoint()
    task.supervisor.complete_last_checkpoint()
    assert positions(task) == [task.run.store.position]


def test_an_end_that_does_not_come_is_waited_for_once(
    tmp_path: Path, clock: ManualClock, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.set()
    task, executor = task_of(tmp_path / "run", clock, checkpoint_seconds=8.0)
    # an end that is always one second away
    monkeypatch.setattr(TimeLeft, "at_boundary", lambda *_: 1.0)
    begun: list[int] = []
    start = task.run.state_store.start_files

    def noted(**keys: Any) -> Any:
        begun.append(int(clock.monotonic()))
        return start(**keys)

    monkeypatch.setattr(task.run.state_store, "start_files", noted)
    for _ in range(12):
        step(task, executor)
        task.supervisor.checkpoint_when_due()
    assert begun == [10], "two seconds late, a quarter of the pause"


def test_a_checkpoint_of_a_machine_that_stopped_goes_back_to_the_one_before(
    tmp_path: Path, clock: ManualClock, disk: threading.Event
) -> None:
    disk.set()
    task, executor = task_of(tmp_path / "run", clock)
    step(task, executor)
    task.supervisor.checkpoint()
    for _ in range(3):
        step(task, executor)
    task.supervisor.begin_last_checkpoint()
    task.supervisor.complete_last_checkpoint()
    last = task.run.directory.root / "trials/0000/state-000004.safetensors"
    assert step_of_last(task) == 4
    # nothing waited for it to be on the disk
    last.write_bytes(last.read_bytes()[:100])
    store = RunStore.resume(task.run.store.path, clock=clock)
    states = TrialStateStore(task.run.directory, memory_budget_bytes=1 << 20)
    manifest, problems = latest_good_checkpoint(store, states, directory=task.run.directory)
    assert manifest is not None
    assert len(problems) == 1
    assert states.state_step(0) == 1


def test_only_the_last_one_does_not_wait_for_the_disk(
    tmp_path: Path, clock: ManualClock, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.set()
    flushed: list[str] = []
    monkeypatch.setattr(durable_files, "flush_to_disk", lambda path: flushed.append(path.name))
    task, executor = task_of(tmp_path / "run", clock)
    step(task, executor)
    task.supervisor.checkpoint()
    assert any("state-000001" in name for name in flushed)
    flushed.clear()
    step(task, executor)
    task.supervisor.begin_last_checkpoint()
    task.supervisor.complete_last_checkpoint()
    assert positions(task)[-1] == task.run.store.position
    assert flushed, "its manifest is"
    assert not any("state-" in name for name in flushed)
