"""The loop of an executor: who steps, whose events are whose, who goes first, and what a stop leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.callbacks.callbacks import Callbacks
from cohort.engine.train.step_loop import StepLoop, StopRequestedError
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.turns.base_turns import BaseTurns
from cohort.engine.turns.step_turns import EveryoneSteps, ReadyStep
from cohort.engine.turns.sweep_turns import SweepTurns
from cohort.runs.facts import Activity
from cohort.scheduling.admission import Capacity
from cohort.tuning.early_exit.settings import EarlyExitSettings
from tests.engine.train.fakes import AheadExecutor, FakeExecutor, Task, spec_of

ROOM = Capacity(rank_rows=1024, num_slots=8, tokens_per_step=1e9)
KEY = 10_000_000


def session_of(executor: FakeExecutor, clock: ManualClock, *, capacity: Capacity = ROOM, **keys: Any) -> StepLoop:
    fake: Any = executor
    return StepLoop(fake, capacity=capacity, clock=clock, **{"stop_requested": lambda: False, **keys})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def executor(clock: ManualClock) -> FakeExecutor:
    return FakeExecutor(clock)


def test_all_trials_of_a_task_step_together_until_each_has_ended(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1, num_steps=2)], clock=clock)
    ended: list[Supervisor] = []
    session = session_of(executor, clock, on_end=ended.append)
    session.join(task.supervisor)
    session.run()
    task.supervisor.complete_last_checkpoint()
    assert executor.packs == [(0, 1), (0, 1), (0,), (0,)]
    assert ended == [task.supervisor]
    assert executor.resident == ()
    (checkpoint,) = task.run.store.reader.checkpoints()
    assert checkpoint.position == task.run.store.position


def test_each_task_gets_its_own_events_and_its_share_of_the_time(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    one = Task(tmp_path / "one", executor, [spec_of(0, batch_size=3)], clock=clock)
    two = Task(tmp_path / "two", executor, [spec_of(0)], clock=clock, place=1)
    session = session_of(executor, clock)
    for task in (one, two):
        session.join(task.supervisor)
    session.run()
    assert executor.packs == [(0, KEY)] * 4
    for task, seconds in ((one, 3.0), (two, 1.0)):
        assert {event.trial_id for events, _ in task.ticks for event in events} == {0}
        assert task.run.time_spent.total(Activity.TRAIN) == pytest.approx(seconds)


def test_a_task_that_joins_with_a_higher_priority_takes_the_slots_at_the_next_step(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    patient = Task(tmp_path / "patient", executor, [spec_of(0)], clock=clock)
    urgent = Task(tmp_path / "urgent", executor, [spec_of(0, num_steps=2)], clock=clock, place=1, priority=1)

    def at_boundary() -> None:
        if len(executor.packs) == 1 and not urgent.study.is_finished:
            session.join(urgent.supervisor)

    one_slot = dataclasses.replace(ROOM, num_slots=1)
    session = session_of(executor, clock, capacity=one_slot, at_boundary=at_boundary)
    session.join(patient.supervisor)
    session.run()
    assert executor.packs == [(0,), (KEY,), (KEY,), (0,), (0,), (0,)]
    assert patient.study.trajectory(0).num_steps == 4


def test_a_stop_saves_every_task_and_takes_no_step(tmp_path: Path, clock: ManualClock, executor: FakeExecutor) -> None:
    tasks = [Task(tmp_path / str(place), executor, [spec_of(0)], clock=clock, place=place) for place in range(2)]
    session = session_of(executor, clock, stop_requested=lambda: len(executor.packs) == 3)
    for task in tasks:
        session.join(task.supervisor)
    with pytest.raises(StopRequestedError):
        session.run()
    assert len(executor.packs) == 3
    for task in tasks:
        assert len(task.run.store.reader.checkpoints()) == 1
        assert (task.run.directory.trials / "0000" / "state-000003.safetensors").is_file()


def test_trials_that_cannot_step_together_step_one_by_one_with_one_warning(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1)], clock=clock)
    plain = executor.step

    def step(keys: Any) -> Any:
        if len(keys) > 1:
            raise RuntimeError("too large together")
        return plain(keys)

    executor.step = step  # type: ignore[method-assign]
    session = session_of(executor, clock)
    session.join(task.supervisor)
    session.run()
    assert executor.packs == [(0,), (1,)] * 4
    (warning,) = task.notes
    assert "could not step together (RuntimeError: too large together), so they step one by one" in warning


def test_a_trial_that_fails_is_recorded_with_its_own_number(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    other = Task(tmp_path / "other", executor, [spec_of(0)], clock=clock)
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1)], clock=clock, place=1)
    executor.errors[KEY + 1] = [ValueError("a bad row") for _ in range(9)]
    session = session_of(executor, clock)
    for member in (other, task):
        session.join(member.supervisor)
    session.run()
    trials = {trial.trial_id: trial for trial in task.run.store.reader.trials()}
    assert (trials[0].steps_done, trials[1].steps_done) == (4, 0)
    assert trials[1].message == "ValueError: a bad row (tried 3 times)"
    assert other.study.trajectory(0).num_steps == 4


def test_a_due_checkpoint_holds_what_was_decided_at_the_boundary_after_its_step(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a callback is told of a step once: saved without what it decided, that would be lost with a kill
    order: list[str] = []
    task = Task(tmp_path / "run", executor, [spec_of(0, num_steps=2)], clock=clock)
    monkeypatch.setattr(task.supervisor, "checkpoint_when_due", lambda: order.append("due"))
    session = session_of(executor, clock, at_boundary=lambda: order.append(f"boundary {len(executor.packs)}"))
    session.join(task.supervisor)
    session.run()
    assert order == ["boundary 0", "boundary 1", "due", "boundary 2", "due"]


def test_steps_up_to_an_evaluation_are_launched_before_the_ones_before_them_are_read(
    tmp_path: Path, clock: ManualClock
) -> None:
    executor = AheadExecutor(clock)
    task = Task(tmp_path / "run", executor, [spec_of(0, num_steps=4), spec_of(1, num_steps=4)], clock=clock)
    session = session_of(executor, clock)
    session.join(task.supervisor)
    session.run()
    assert executor.order == [
        *("launch 1", "launch 2", "read 1", "read 2"),
        *("launch 3", "launch 4", "read 3", "read 4"),
    ]
    # evaluations follow the second and the fourth step, and are said before these are launched
    assert executor.expected == [[], [[0, 1]], [], [[0, 1]]]
    assert task.evaluated == [{0: 2, 1: 2}, {0: 4, 1: 4}]
    assert [len(events) for events, _ in task.ticks] == [2, 4, 2, 4]


def test_a_boundary_comes_after_a_number_of_steps_however_long_they_take(tmp_path: Path, clock: ManualClock) -> None:
    # by a clock, the packs of a trial that diverges would not be the same in the same run again
    executor = AheadExecutor(clock)
    task = Task(tmp_path / "run", executor, [spec_of(0, num_steps=12)], clock=clock, every=6)
    boundaries: list[int] = []
    session = session_of(
        executor, clock, at_boundary=lambda: boundaries.append(len(executor.packs)), ahead_steps=lambda _: 4
    )
    session.join(task.supervisor)
    session.run()
    assert boundaries == [0, 4, 6, 10, 12]


def test_how_many_are_launched_ahead_follows_from_who_is_resident(tmp_path: Path, clock: ManualClock) -> None:
    executor = AheadExecutor(clock)
    # 40 tokens a step, and 10 once the second trial has ended, after its second step
    specs = [spec_of(0, num_steps=8), spec_of(1, num_steps=2, batch_size=3)]
    task = Task(tmp_path / "run", executor, specs, clock=clock)
    asked: list[float] = []

    def ahead(tokens: float) -> int:
        asked.append(tokens)
        return 1 if tokens > 10 else 64

    session = session_of(executor, clock, ahead_steps=ahead)
    session.join(task.supervisor)
    session.run()
    assert asked == [40, 40, 10, 10, 10]
    assert executor.order[:6] == ["launch 1", "read 1", "launch 2", "read 2", "launch 3", "launch 4"]


def test_a_trial_that_diverges_takes_one_more_step_that_is_recorded_nowhere(tmp_path: Path, clock: ManualClock) -> None:
    executor = AheadExecutor(clock)
    task = Task(
        tmp_path / "run",
        executor,
        [spec_of(trial_id, num_steps=4) for trial_id in range(3)],
        clock=clock,
        early_exit=EarlyExitSettings(),
    )
    executor.losses[1, 1] = float("nan")
    session = session_of(executor, clock)
    session.join(task.supervisor)
    session.run()
    assert executor.packs[:2] == [(0, 1, 2), (0, 1, 2)]
    assert all(1 not in pack for pack in executor.packs[2:])
    assert [step.step for step in task.run.store.reader.log.steps(1)] == [1]
    assert [step.step for step in task.run.store.reader.log.steps(0)] == [1, 2, 3, 4]
    # what it trained for nothing is kept nowhere
    assert task.run.state_store.state(1) is None


def test_an_error_of_a_step_that_was_launched_ahead_leaves_the_one_before_recorded(
    tmp_path: Path, clock: ManualClock
) -> None:
    executor = AheadExecutor(clock)
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1)], clock=clock)
    plain = executor.step

    def step(keys: Any) -> Any:
        if len(executor.packs) == 1:
            executor.errors[1] = [RuntimeError("a broken row")] * 5
        return plain(keys)

    executor.step = step  # type: ignore[method-assign]
    session = session_of(executor, clock)
    session.join(task.supervisor)
    session.run()
    log = task.run.store.reader.log
    assert [entry.step for entry in log.steps(1)] == [1]
    assert [entry.step for entry in log.steps(0)] == [1, 2, 3, 4]
    assert any("a broken row" in note for note in task.notes)


def test_a_function_that_hears_of_each_step_hears_of_it_before_the_next(tmp_path: Path, clock: ManualClock) -> None:
    executor = AheadExecutor(clock)
    task = Task(tmp_path / "run", executor, [spec_of(0)], clock=clock)
    object.__setattr__(task.run, "callbacks", Callbacks(on_step=lambda report: None))
    session = session_of(executor, clock)
    session.join(task.supervisor)
    session.run()
    assert executor.order == [f"{what} {number}" for number in range(1, 5) for what in ("launch", "read")]


def test_a_tenant_that_comes_steps_next_whatever_the_others_hold(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    flood = Task(tmp_path / "flood", executor, [spec_of(number, num_steps=40) for number in range(20)], clock=clock)
    late = Task(tmp_path / "late", executor, [spec_of(0, num_steps=6)], clock=clock, place=1)
    came: list[int] = []

    def at_boundary() -> None:
        if len(executor.packs) == 12 and not came:
            came.append(len(executor.packs))
            session.join(late.supervisor, tenant="late")

    turns = SweepTurns(BaseTurns(clock=clock.monotonic), fill_tokens=20)
    session = session_of(executor, clock, at_boundary=at_boundary, turns=turns, stop_requested=lambda: is_late_done())

    def is_late_done() -> bool:
        return bool(came) and late.study.is_finished

    session.join(flood.supervisor, tenant="flood")
    with pytest.raises(StopRequestedError):
        session.run()
    # every slot was the flood's
    assert all(len(pack) == 8 and KEY not in pack for pack in executor.packs[:12])
    own = [KEY in pack for pack in executor.packs[12:]]
    # the pass that ran when it came is the only one that it waited for, and then it has its half
    assert own[0]
    assert sum(own) == 6
    assert len(own) <= 12


def test_requests_for_room_of_one_tenant_are_as_they_were(
    tmp_path: Path, clock: ManualClock, executor: FakeExecutor
) -> None:
    turns = SweepTurns(BaseTurns(clock=clock.monotonic), fill_tokens=20)
    task = Task(tmp_path / "run", executor, [spec_of(0), spec_of(1, num_steps=2)], clock=clock)
    session = session_of(executor, clock, turns=turns)
    session.join(task.supervisor, tenant="one")
    session.run()
    assert executor.packs == [(0, 1), (0, 1), (0,), (0,)]


class LateTurns(EveryoneSteps):
    """Each step waits for another thread's pass of five seconds."""

    is_shared = True

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    @contextmanager
    def step(self, ready: Sequence[ReadyStep]) -> Iterator[list[int]]:
        self._clock.advance(5.0)
        yield [trial.key for trial in ready]


def test_waiting_for_a_turn_is_no_time_of_the_task(tmp_path: Path, clock: ManualClock, executor: FakeExecutor) -> None:
    task = Task(tmp_path / "run", executor, [spec_of(0)], clock=clock)
    session = session_of(executor, clock, turns=LateTurns(clock))
    session.join(task.supervisor)
    session.run()
    # four steps of a second
    assert task.run.time_spent.total(Activity.TRAIN) == pytest.approx(4.0)
