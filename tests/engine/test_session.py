"""Tasks of a session, one or several: what a failed beginning, a stop and an end leave."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from cohort.core.clock import SystemClock
from cohort.core.errors import RunStateError, StorageFullError
from cohort.engine.session import Session
from cohort.engine.session_task import SessionTask
from cohort.engine.train import finish
from cohort.engine.train.open_run import RunConditions
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_run import TaskRun
from cohort.engine.train.watching.step_costs import StepRecorder
from cohort.engine.tune import tune
from cohort.prepare.preparation import Preparation, prepare
from cohort.ranks.training_executor import TrainingExecutor
from cohort.runs.facts import RunFacts, RunState
from cohort.runs.reader import RunReader
from cohort.tuning.decisions import DecisionKind
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.engine.train.fakes import Notes

SHORT = {"training": {"max_steps": 2}, "search": {"space": {"learning_rate": [1e-3]}}, "lora": {"r": 2}}
# room for a trial of each of two tasks, so that they end with the same step
WIDER = {**SHORT, "search": {"space": {"learning_rate": [1e-3, 2e-3]}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("tiny"))


def hand_in(session: Session, folder: Path, run: Path, sections: dict[str, Any] = SHORT) -> None:
    preparation = prepare(tiny_task(folder, **sections), clock=SystemClock())
    session._hand_in(
        SessionTask(name=run.name, directory=run, preparation=preparation, conditions=RunConditions(watcher=Notes()))
    )


def facts_of(run: Path) -> RunFacts:
    with RunReader.open(run / "run.db") as reader:
        return reader.facts()


def is_saved(run: Path) -> bool:
    with RunReader.open(run / "run.db") as reader:
        return reader.checkpoints()[-1].position == reader.log.last_position()


def name_of(member: TaskRun | Supervisor) -> str:
    return (member.run if isinstance(member, TaskRun) else member._run).directory.root.name


def kept(monkeypatch: pytest.MonkeyPatch) -> list[StepRecorder]:
    """Return the recorders whose costs are kept from now on."""
    found: list[StepRecorder] = []
    monkeypatch.setattr(StepRecorder, "keep", lambda self: found.append(self))
    return found


def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the runs whose trackers are closed from now on."""
    found: list[str] = []
    close = TaskRun.close_trackers

    def close_and_tell(self: TaskRun) -> None:
        found.append(name_of(self))
        close(self)

    monkeypatch.setattr(TaskRun, "close_trackers", close_and_tell)
    return found


def test_a_lone_task_is_finished_and_leaves_its_step_costs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders, session = kept(monkeypatch), Session(is_shared=False)
    hand_in(session, folder, tmp_path / "run")
    assert session.train() == []
    facts = facts_of(tmp_path / "run")
    assert facts.state is RunState.DONE
    assert facts.base_metrics is not None
    assert (tmp_path / "run" / "best" / "adapter_model.safetensors").is_file()
    assert len(recorders) == 1


def test_a_run_whose_steps_are_launched_ahead_is_that_of_steps_in_turn(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = {
        "training": {"max_steps": 8},
        "search": {"space": {"learning_rate": [1e-4, 1e-3, 1e-2, 1e9], "batch_size": [1, 2]}},
        "lora": {"r": 2},
    }
    found = []
    build = Preparation.build_executor
    for is_ahead in (False, True):

        def built(self: Preparation, is_ahead: bool = is_ahead) -> TrainingExecutor:
            executor: Any = build(self)
            executor.launches_ahead = executor._ahead.is_used = executor._evaluations.ahead.is_used = is_ahead
            return executor  # type: ignore[no-any-return]

        monkeypatch.setattr(Preparation, "build_executor", built)
        session, path = Session(), tmp_path / f"{is_ahead}"
        hand_in(session, folder, path, sections)
        assert session.train() == []
        with RunReader.open(path / "run.db") as reader:
            log = reader.log
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


def test_what_one_of_two_tasks_cannot_finish_is_told_and_no_step_is_taken_for_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders, plain, session = kept(monkeypatch), TaskRun.finish, Session()

    def finish_one(self: TaskRun, **keys: Any) -> None:
        if name_of(self) == "broken":
            raise RunStateError("no best adapter")
        plain(self, **keys)

    monkeypatch.setattr(TaskRun, "finish", finish_one)
    for name in ("broken", "whole"):
        hand_in(session, folder, tmp_path / name, WIDER)
    (error,) = session.train()
    assert str(error) == "no best adapter"
    # both ended with the same step
    assert is_saved(tmp_path / "whole")
    assert (tmp_path / "whole" / "best" / "adapter_model.safetensors").is_file()
    assert recorders == []


def test_a_full_disk_ends_one_task_and_the_trackers_of_all_are_closed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, session, complete = closed(monkeypatch), Session(), Supervisor.complete_last_checkpoint

    def no_room_at_the_end(self: Supervisor) -> None:
        if name_of(self) == "1":
            raise StorageFullError("no room")
        complete(self)

    monkeypatch.setattr(Supervisor, "complete_last_checkpoint", no_room_at_the_end)
    for number in range(2):
        hand_in(session, folder, tmp_path / str(number))
    (error,) = session.train()
    assert isinstance(error, StorageFullError)
    assert set(found) == {"0", "1"}
    assert facts_of(tmp_path / "0").state is RunState.DONE


def test_a_task_that_cannot_begin_leaves_the_session_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, session = closed(monkeypatch), Session()

    def fail(self: TaskRun) -> None:
        raise RuntimeError("the device is on fire")

    with monkeypatch.context() as broken:
        broken.setattr(TaskRun, "measure_base", fail)
        hand_in(session, folder, tmp_path / "broken")
        (error,) = session.train()
    assert str(error) == "the device is on fire"
    assert set(found) == {"broken"}
    hand_in(session, folder, tmp_path / "run")
    assert session.train() == []
    assert facts_of(tmp_path / "run").state is RunState.DONE


def test_the_error_of_a_lone_task_is_raised_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("not one of ours")

    def fail(self: TaskRun) -> None:
        raise error

    monkeypatch.setattr(TaskRun, "between_steps", fail)
    with pytest.raises(ValueError, match="not one of ours") as caught:
        tune(tiny_task(folder, **SHORT), tmp_path / "run")
    assert caught.value is error


def test_a_stop_saves_and_says_so_and_the_slots_can_be_used_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    hand_in(session, folder, tmp_path / "run")
    with monkeypatch.context() as signalled:
        took = TaskRun._took

        def stop(self: TaskRun, *happened: Any) -> None:
            took(self, *happened)
            signal.raise_signal(signal.SIGINT)

        signalled.setattr(TaskRun, "_took", stop)
        with pytest.raises(KeyboardInterrupt):
            session.train()
    assert facts_of(tmp_path / "run").state is RunState.INTERRUPTED
    hand_in(session, folder, tmp_path / "next")
    assert session.train() == []
    assert session._executor is not None
    assert session._executor.resident == ()


def test_ctrl_c_while_results_are_written_has_the_last_checkpoint_completed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    session = Session()
    monkeypatch.setattr(finish, "write_adapter_files", interrupted)
    hand_in(session, folder, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        session.train()
    assert is_saved(tmp_path / "run")
