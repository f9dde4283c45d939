"""Tasks that join an executor, alone or not: what a failed beginning, a stop and an end leave."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.core.clock import ManualClock, SystemClock
from cohort.core.errors import RunStateError, StorageFullError
from cohort.engine.run_start import begun_run, new_directory
from cohort.engine.train import finish
from cohort.engine.train.open_run import OpenRun, RunOptions
from cohort.engine.train.task_run import TaskRun
from cohort.engine.train.task_session import TaskSession
from cohort.engine.train.watching.step_costs import StepRecorder
from cohort.prepare.preparation import Preparation, prepare
from cohort.runs.facts import RunState
from cohort.tuning.decisions import DecisionKind
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.engine.train.fakes import Notes

SHORT = {"training": {"max_steps": 2}, "search": {"space": {"learning_rate": [1e-3]}}, "lora": {"r": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def prepared(folder: Path) -> Preparation:
    return prepare(tiny_task(folder, **SHORT), clock=SystemClock())


@contextlib.contextmanager
def opened(preparation: Preparation, path: Path, *, clock: Any = None) -> Iterator[OpenRun]:
    clock = clock or SystemClock()
    with (
        new_directory(path, preparation.task) as directory,
        begun_run(preparation, directory, watcher=Notes(), options=RunOptions(), clock=clock) as run,
    ):
        yield run


def kept(monkeypatch: pytest.MonkeyPatch) -> list[StepRecorder]:
    """Return the recorders whose costs are kept from now on."""
    found: list[StepRecorder] = []
    monkeypatch.setattr(StepRecorder, "keep", lambda self: found.append(self))
    return found


def test_a_lone_task_is_finished_and_leaves_its_step_costs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders, preparation = kept(monkeypatch), prepared(folder)
    session = TaskSession(preparation, clock=SystemClock())
    with opened(preparation, tmp_path / "run") as run:
        session.join(preparation, run)
        session.run()
        facts = run.store.reader.facts()
    assert facts.state is RunState.DONE
    assert facts.base_metrics is not None
    assert (tmp_path / "run" / "best" / "adapter_model.safetensors").is_file()
    assert len(recorders) == 1


def test_a_run_whose_steps_are_launched_ahead_is_that_of_steps_in_turn(folder: Path, tmp_path: Path) -> None:
    task = tiny_task(
        folder,
        training={"max_steps": 8},
        search={"space": {"learning_rate": [1e-4, 1e-3, 1e-2, 1e9], "batch_size": [1, 2]}},
        lora={"r": 2},
    )
    found = []
    for is_ahead in (False, True):
        preparation = prepare(task, clock=SystemClock())
        session = TaskSession(preparation, clock=SystemClock())
        executor: Any = session._executor
        executor.launches_ahead = executor._ahead.is_used = executor._evaluations.ahead.is_used = is_ahead
        path = tmp_path / f"{is_ahead}"
        with opened(preparation, path) as run:
            session.join(preparation, run)
            session.run()
            log = run.store.reader.log
            found.append(
                (
                    [(one.trial_id, one.step, repr(one.loss), repr(one.grad_norm)) for one in log.steps()],
                    [(one.trial_id, one.step, one.validation_loss) for one in log.evaluations()],
                    [(one.decision.trial_id, one.decision.step, one.decision.kind) for one in log.decisions()],
                    (path / "best" / "adapter_model.safetensors").read_bytes(),
                )
            )
    assert found[0] == found[1]
    assert {reason for _, _, reason in found[0][2]} >= {DecisionKind.STOP, DecisionKind.FINISH}


def test_what_one_of_two_tasks_cannot_finish_is_passed_on_and_no_step_is_taken_for_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders, preparations = kept(monkeypatch), [prepared(folder) for _ in range(2)]
    session = TaskSession(preparations[0], clock=SystemClock())
    failed: dict[str, str] = {}

    def finish_one(member: TaskRun) -> None:
        try:
            session.finish(member)
        except RunStateError as error:
            failed[member.run.directory.root.name] = str(error)

    with contextlib.ExitStack() as runs:
        for number, preparation in enumerate(preparations):
            session.join(preparation, runs.enter_context(opened(preparation, tmp_path / str(number))))
        broken = next(iter(session._members.values()))

        def no_adapter(**_: object) -> None:
            raise RunStateError("no best adapter")

        monkeypatch.setattr(broken, "finish", no_adapter)
        session.run(finish=finish_one)
    assert failed == {"0": "no best adapter"}
    assert (tmp_path / "1" / "best" / "adapter_model.safetensors").is_file()
    assert recorders == []


def test_a_full_disk_closes_the_trackers_of_a_task_that_had_just_ended_as_well(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparations = [prepared(folder) for _ in range(2)]
    session = TaskSession(preparations[0], clock=SystemClock())
    closed: list[TaskRun] = []
    monkeypatch.setattr(TaskRun, "close_trackers", lambda self: closed.append(self))
    with contextlib.ExitStack() as runs:
        members = [
            session.join(preparation, runs.enter_context(opened(preparation, tmp_path / str(number))))
            for number, preparation in enumerate(preparations)
        ]

        def no_room_at_the_end() -> None:
            raise StorageFullError("no room")

        monkeypatch.setattr(members[1].supervisor, "complete_last_checkpoint", no_room_at_the_end)
        with pytest.raises(StorageFullError):
            session.run()
    assert set(closed) == set(members)


def test_a_task_that_cannot_begin_leaves_the_session_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation = prepared(folder)
    session = TaskSession(preparation, clock=SystemClock())
    closed: list[TaskRun] = []
    close = TaskRun.close_trackers

    def fail(self: TaskRun) -> None:
        raise RuntimeError("the device is on fire")

    def close_and_tell(self: TaskRun) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(TaskRun, "close_trackers", close_and_tell)
    with monkeypatch.context() as broken:
        broken.setattr(TaskRun, "measure_base", fail)
        with opened(preparation, tmp_path / "broken") as run, pytest.raises(RuntimeError, match="on fire"):
            session.join(preparation, run)
    assert len(closed) == 1
    preparation = prepared(folder)
    with opened(preparation, tmp_path / "run") as run:
        session.join(preparation, run)
        session.run()
        assert run.store.reader.facts().state is RunState.DONE


def test_a_stop_saves_and_says_so_and_the_slots_can_be_used_again(folder: Path, tmp_path: Path) -> None:
    preparation = prepared(folder)
    session = TaskSession(preparation, clock=ManualClock())
    with opened(preparation, tmp_path / "run", clock=ManualClock()) as run:
        session.join(preparation, run)
        with pytest.raises(KeyboardInterrupt):
            session.run(welcome=lambda: signal.raise_signal(signal.SIGINT))
        assert run.store.reader.facts().state is RunState.INTERRUPTED
    session.vacate()
    assert session._executor.resident == ()


def is_saved(run: OpenRun) -> bool:
    return run.store.reader.checkpoints()[-1].position == run.store.position


def test_ctrl_c_while_results_are_written_has_the_last_checkpoint_completed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation = prepared(folder)
    session = TaskSession(preparation, clock=SystemClock())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(finish, "write_adapter_files", interrupted)
    with opened(preparation, tmp_path / "run") as run:
        session.join(preparation, run)
        with pytest.raises(KeyboardInterrupt):
            session.run()
        assert is_saved(run)


def test_an_error_at_the_end_of_one_task_leaves_others_that_ended_with_it_saved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # room for a trial of each, so that they end with the same step
    wider = {**SHORT, "search": {"space": {"learning_rate": [1e-3, 2e-3]}}}
    session = TaskSession(prepare(tiny_task(folder, **wider), clock=SystemClock()), clock=SystemClock())
    preparations = [replace(prepared(folder), sizes=session.sizes) for _ in range(2)]
    with contextlib.ExitStack() as runs:
        members = [
            session.join(preparation, runs.enter_context(opened(preparation, tmp_path / str(number))))
            for number, preparation in enumerate(preparations)
        ]

        def no_adapter(**_: object) -> None:
            raise RunStateError("no best adapter")

        monkeypatch.setattr(members[0], "finish", no_adapter)
        monkeypatch.setattr(members[0], "write_behind", lambda: SimpleNamespace(wait=lambda: None))
        with pytest.raises(RunStateError):
            session.run()
        assert is_saved(members[1].run)


def test_one_ctrl_c_leaves_out_what_is_still_to_be_written_of_all_tasks(folder: Path) -> None:
    session, given_up = TaskSession(prepared(folder), clock=ManualClock()), list[int]()

    class Behind:
        def __init__(self, number: int) -> None:
            self.number, self.is_done = number, lambda: number in given_up

        def wait(self) -> bool:
            assert self.number == 0, "the others are not waited for"
            given_up.append(self.number)
            return False

        def give_up(self) -> None:
            given_up.append(self.number)

    behind: Any = {object(): (Behind(number), lambda: None) for number in range(3)}
    session._behind = behind
    session._train = lambda **_: None  # type: ignore[method-assign]
    session.run()
    assert set(given_up) == {0, 1, 2}
    assert session._behind == {}
