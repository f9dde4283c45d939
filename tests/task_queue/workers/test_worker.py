"""A worker's side of a queue: what it reports of a task, and how it stops; real processes are tested end to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.errors import CohortError, InputError, Problem
from cohort.engine.train.watching.progress import RunProgress
from cohort.machine.cluster.local import LocalPool, gpu_slots
from cohort.machine.cluster.worker_pool import WorkerDied, WorkerMessage
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.records import TrialRecord
from cohort.task_queue.workers import worker
from cohort.task_queue.workers.messages import (
    Heartbeat,
    Note,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskError,
    TaskStopped,
    as_message,
    read_message,
)
from cohort.tuning.trial_status import TrialStatus
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs

# the constant of cohort.task_queue.workers.pool, which needs the planner
TARGET = "cohort.task_queue.workers.worker:serve"


class Channel:
    """The dispatcher: gives what it was told to, keeps what it gets."""

    def __init__(self, *orders: RunTask | StopTask) -> None:
        self._orders = [as_message(order) for order in orders]
        self.sent: list[Any] = []

    def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(read_message(message))

    def receive(self) -> Mapping[str, Any] | None:
        return self._orders.pop(0) if self._orders else None


def order(folder: Path, task: str = "a", **options: Any) -> RunTask:
    return RunTask(task=task, source=f"{task}.yaml", resolved={}, run_directory=str(folder / task), options=options)


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def work(channel: Channel) -> Any:
    return worker._Worker(channel)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What was begun and resumed."""
    did: list[tuple[str, Any]] = []
    monkeypatch.setattr(worker, "task_from_mapping", lambda resolved, **_: resolved)
    monkeypatch.setattr(worker, "tune", lambda task, directory, **keys: did.append(("tune", (directory, keys))))
    monkeypatch.setattr(worker, "resume", lambda directory, **keys: did.append(("resume", (directory, keys))))
    return did


def test_the_directory_alone_says_whether_a_task_begins_or_goes_on(
    work: Any, ran: list[tuple[str, Any]], tmp_path: Path
) -> None:
    assert work._carry_out(order(tmp_path, checkpoint_seconds=5.0)) == TaskDone(task="a")
    directory = RunDirectory.create(tmp_path / "a")
    directory.database.touch()
    assert work._carry_out(order(tmp_path)) == TaskDone(task="a")
    assert [what for what, _ in ran] == ["tune", "resume"]
    assert ran[0][1][1]["options"].checkpoint_seconds == 5.0


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (KeyboardInterrupt(), TaskStopped(task="a")),
        (CohortError("the disk is full"), TaskError(task="a", message="the disk is full")),
        (ZeroDivisionError("by zero"), TaskError(task="a", message="ZeroDivisionError: by zero")),
    ],
)
def test_how_a_task_ends_is_reported_and_the_worker_goes_on(
    work: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, report: Any
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(worker, "_run", fail)
    assert work._carry_out(order(tmp_path)) == report
    assert work._reporter is None


def test_the_users_mistakes_are_marked_so_that_they_are_not_tried_again(
    work: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(where="a.yaml: lora.r", found="0", allowed="1 or more", hint="Write 8.")

    def fail(*_: object, **__: object) -> None:
        raise InputError(problem)

    monkeypatch.setattr(worker, "_run", fail)
    report = work._carry_out(order(tmp_path))
    assert report.is_input_error
    assert str(problem) in report.message


def test_a_task_that_was_stopped_before_it_began_is_not_begun(
    ran: list[tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("cohort.task_queue.workers.worker.os.killpg", lambda group, number: killed.append(number))
    channel = Channel(order(tmp_path), StopTask(task="a"), order(tmp_path, "b"))
    work = worker._Worker(channel)
    work._listen()
    assert work._carry_out(work._tasks.get()) == TaskStopped(task="a")
    assert work._carry_out(work._tasks.get()) == TaskDone(task="b")
    assert len(ran) == 1
    # the channel has ended: the dispatcher is gone, and with it this worker and all it started
    assert killed == [signal.SIGKILL]


def test_a_task_that_is_sent_again_after_its_stop_runs(
    ran: list[tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cohort.task_queue.workers.worker.os.killpg", lambda *_: None)
    work = worker._Worker(Channel(StopTask(task="a"), order(tmp_path)))
    work._listen()
    assert work._carry_out(work._tasks.get()) == TaskDone(task="a")


def test_a_running_task_is_stopped_by_the_signal_a_user_would_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    monkeypatch.setattr("cohort.task_queue.workers.worker.os.kill", lambda _, number: signals.append(number))
    monkeypatch.setattr("cohort.task_queue.workers.worker.os.killpg", lambda *_: None)
    work: Any = worker._Worker(Channel(StopTask(task="other"), StopTask(task="a")))
    work._reporter = SimpleNamespace(task="a", phase="training")
    work._listen()
    assert signals == [signal.SIGTERM]


@pytest.mark.parametrize(("phase", "stops"), [("loading the model", True), ("writing the results", False)])
def test_results_that_are_being_written_are_finished_first(work: Any, phase: str, *, stops: bool) -> None:
    # between two tasks a signal means nothing
    work._stop_outside_training(signal.SIGTERM, None)
    work._reporter = SimpleNamespace(task="a", phase=phase)
    if stops:
        with pytest.raises(KeyboardInterrupt):
            work._stop_outside_training(signal.SIGTERM, None)
    else:
        work._stop_outside_training(signal.SIGTERM, None)


def trial(number: int, status: TrialStatus, *, done: int, best: float | None = None) -> TrialRecord:
    return TrialRecord(
        trial_id=number,
        parameters={},
        status=status,
        steps_done=done,
        planned_steps=10,
        best_value=best,
        best_step=None if best is None else 1,
        best_loss=best,
        seed=0,
    )


def test_a_heartbeat_sums_up_the_run(channel: Channel) -> None:
    beats = worker._Heartbeats(channel)
    reporter = worker._Reporter("a", beats, channel)
    trials = (
        trial(0, TrialStatus.RUNNING, done=4, best=2.0),
        trial(1, TrialStatus.STOPPED, done=2, best=1.5),
        trial(2, TrialStatus.FAILED, done=1),
        trial(3, TrialStatus.COMPLETED, done=10),
    )
    reporter.update(RunProgress(phase="training", trials=trials))
    beat = beats._latest["a"]
    assert (beat.task, beat.phase, beat.steps_done, beat.planned_steps) == ("a", "training", 17, 40)
    assert (beat.num_trials, beat.num_ended, beat.num_early, beat.best_value) == (4, 3, 2, 1.5)
    reporter.note("a line")
    assert channel.sent == [Note(task="a", text="a line")]


def test_any_difference_is_progress_and_the_same_report_is_none(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("cohort.task_queue.workers.worker.time.monotonic", lambda: now[0])

    class EnoughError(Exception):
        pass

    def enough(_: float) -> None:
        raise EnoughError

    monkeypatch.setattr("cohort.task_queue.workers.worker.time.sleep", enough)
    beats = worker._Heartbeats(channel)

    def still() -> float:
        with pytest.raises(EnoughError):
            beats.send_forever()
        return float(channel.sent[-1].still_seconds)

    beats.set(Heartbeat(task="a", phase="training", steps_done=1))
    now[0] = 107.0
    beats.set(Heartbeat(task="a", phase="training", steps_done=1))
    assert still() == 7.0
    beats.set(Heartbeat(task="a", phase="evaluating", steps_done=1))
    assert still() == 0.0


def test_a_worker_is_ready_once_it_is_warm_and_reports_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndError(Exception):
        pass

    channel = Channel()
    work = worker._Worker(channel)
    did: list[str] = []
    orders = [order(tmp_path), order(tmp_path, "b")]

    def get() -> RunTask:
        if not orders:
            raise EndError
        return orders.pop(0)

    monkeypatch.setattr(
        "cohort.task_queue.workers.worker.signal.signal", lambda number, _: did.append(f"handles {number.name}")
    )
    monkeypatch.setattr(
        "cohort.task_queue.workers.worker.threading.Thread", lambda **_: SimpleNamespace(start=lambda: None)
    )
    # over all that other tests left it would take seconds
    monkeypatch.setattr("cohort.task_queue.workers.worker.gc.collect", lambda: 0)
    monkeypatch.setattr(worker, "_warm_up", lambda: did.append("warm"))
    monkeypatch.setattr(worker, "_run", lambda order, **_: did.append(order.task))
    monkeypatch.setattr(work, "_tasks", SimpleNamespace(get=get))
    with pytest.raises(EndError):
        work.work()
    assert did == ["handles SIGINT", "handles SIGTERM", "handles SIGHUP", "warm", "a", "b"]
    assert isinstance(channel.sent[0], Ready)
    assert channel.sent[1:] == [TaskDone(task="a"), TaskDone(task="b")]
    # between tasks it says that it has none
    assert work._heartbeats._latest == {}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_worker_of_a_gang_trains_on_all_its_gpus_and_then_on_its_own(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "in")
    task = tiny_task(folder, num_gpus="auto").model_dump(mode="json")
    pool = LocalPool(gpu_slots(["0", "1"], num_threads=1), target=TARGET, log_directory=tmp_path / "logs")

    def reports_until(kind: Any) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + 240
        while not any(isinstance(report, kind) for report in found):
            assert time.monotonic() < deadline, found
            for event in pool.wait(0.5):
                assert isinstance(event, WorkerMessage), event
                found.append(read_message(event.message))
        return found

    def carry_out(name: str, *, num_ranks: int | None) -> str:
        run = tmp_path / name
        options = {"num_ranks": num_ranks}
        pool.send(0, as_message(RunTask(
            task=name, source=name, resolved=task, run_directory=str(run), options=options)))  # fmt: skip
        (end,) = (report for report in reports_until((TaskDone, TaskError)) if isinstance(report, TaskDone | TaskError))
        assert isinstance(end, TaskDone), end
        with RunReader.open(run / "run.db") as reader:
            return str({record.rank for record in reader.log.rank_work()})

    try:
        pool.start(0, also=(1,))
        reports_until(Ready)
        assert carry_out("wide", num_ranks=2) == "{0, 1}"
        pool.kill(0)
        while not any(isinstance(event, WorkerDied) for event in pool.wait(0.5)):
            pass
        pool.start(0)
        reports_until(Ready)
        assert carry_out("narrow", num_ranks=None) == "set()"
    finally:
        pool.close()
