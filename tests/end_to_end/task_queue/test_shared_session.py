"""Several tasks in one executor: each ends as it would have alone, and the urgent one goes first."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.checkpoints.trial_states import TrialStateStore
from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, StorageFullError
from cohort.engine.session import Session
from cohort.engine.session_task import TaskEnd
from cohort.engine.shared_fit import CannotShareError
from cohort.engine.train.step_loop import StepLoop
from cohort.engine.train.supervisor import Supervisor
from cohort.engine.train.task_run import TaskRun
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.records import LoggedDecision
from cohort.runs.results.task_result import TasksFailedError
from cohort.tasks.loading import TaskFile
from cohort.tuning.decisions import DecisionKind
from tests.cli.tiny_task import write_tiny_model
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_task, write_inputs

# room for two or three trials at a time
OPTIONS = RunOptions(token_budget=40)


class Acting:
    """Does something once, when the task's trials have done ``steps`` steps together."""

    def __init__(self, steps: int, act: Callable[[], None]) -> None:
        self._steps, self._act = steps, act
        self.has_acted = False

    def update(self, progress: RunProgress) -> None:
        done = sum(trial.steps_done for trial in progress.trials)
        if not self.has_acted and progress.phase == "training" and done >= self._steps:
            self.has_acted = True
            self._act()

    def note(self, text: str) -> None: ...


class TickingClock(ManualClock):
    """A second passes each time somebody looks, so that every step is told to watchers."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    rows = [{"prompt": f"{n}*2=", "completion": str(2 * n)} for n in range(20)]
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def patient_task(folder: Path) -> TaskFile:
    return tiny_task(folder)


def other_task(folder: Path, **sections: Any) -> TaskFile:
    """Other rows, other ranks and steps, another seed."""
    return tiny_task(
        folder,
        dataset={"train": "other.jsonl"},
        training={"max_steps": 5, "seed": 7, "batch_size": 3},
        search={"space": {"learning_rate": [1e-3, 1e-2], "r": [3, 8]}},
        **sections,
    )


@pytest.fixture(scope="module")
def alone(folder: Path) -> tuple[Outcome, Outcome]:
    tune(patient_task(folder), folder / "patient")
    tune(other_task(folder), folder / "other")
    return in_any_order(folder / "patient"), in_any_order(folder / "other")


def in_any_order(run: Path) -> Outcome:
    """The outcome of a run with its decisions sorted: who is beside a trial changes when it is decided about."""
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


def test_two_tasks_end_as_they_would_alone(folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome]) -> None:
    session = Session(options=OPTIONS)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient")
    session.submit(other_task(folder), tmp_path / "other", name="other")
    results = session.run()
    assert [result.name for result in results] == ["patient", "other"]
    assert all((result.adapter_directory / "adapter_model.safetensors").is_file() for result in results)
    assert (in_any_order(tmp_path / "patient"), in_any_order(tmp_path / "other")) == alone


def test_an_urgent_task_takes_slots_at_the_next_step_and_changes_no_bit(
    folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome]
) -> None:
    session = Session(options=OPTIONS, clock=TickingClock())

    def hand_in() -> None:
        session.submit(other_task(folder, priority=5), tmp_path / "urgent", name="urgent")

    watcher = Acting(1, hand_in)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient", watcher=watcher)
    session.run()
    assert watcher.has_acted
    assert (in_any_order(tmp_path / "patient"), in_any_order(tmp_path / "urgent")) == alone
    with RunReader.open(tmp_path / "patient" / "run.db") as reader:
        stays = Counter(stay.trial_id for stay in reader.log.residencies())
        parked = {
            entry.decision.trial_id
            for entry in reader.log.entries()
            if isinstance(entry, LoggedDecision) and entry.decision.kind is DecisionKind.PARK
        }
    # who came back without having been parked by a rule was taken out for the urgent ones
    assert any(count > 1 + (trial_id in parked) for trial_id, count in stays.items()), stays


def test_an_interrupted_session_leaves_runs_that_go_on_by_themselves(
    folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome]
) -> None:
    session = Session(options=OPTIONS, clock=TickingClock())
    interrupt = Acting(9, lambda: signal.raise_signal(signal.SIGINT))
    session.submit(patient_task(folder), tmp_path / "patient", name="patient", watcher=interrupt)
    session.submit(other_task(folder), tmp_path / "other", name="other")
    with pytest.raises(KeyboardInterrupt):
        session.run()
    for name in ("patient", "other"):
        resume(tmp_path / name)
    assert (in_any_order(tmp_path / "patient"), in_any_order(tmp_path / "other")) == alone


def test_a_task_handed_in_when_the_last_has_ended_waits_for_the_next_call(
    folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(options=OPTIONS)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient")
    plain_run = StepLoop.run

    def run_and_hand_in(self: StepLoop) -> None:
        plain_run(self)
        monkeypatch.undo()
        session.submit(other_task(folder), tmp_path / "late", name="late")

    monkeypatch.setattr(StepLoop, "run", run_and_hand_in)
    assert [result.name for result in session.run()] == ["patient"]
    assert [result.name for result in session.run()] == ["patient", "late"]
    assert (in_any_order(tmp_path / "patient"), in_any_order(tmp_path / "late")) == alone


def test_a_late_task_that_cannot_begin_fails_alone(
    folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(options=OPTIONS, clock=TickingClock())

    def hand_in_three() -> None:
        session.submit(other_task(folder), tmp_path / "taken", name="taken")
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "somebody's.txt").touch()
        session.submit(other_task(folder), tmp_path / "broken", name="broken")
        session.submit(other_task(folder), tmp_path / "late", name="late")

    measure_base = TaskRun.measure_base

    def measure_or_fail(self: TaskRun) -> None:
        if self.run.directory.root.name == "broken":
            raise RuntimeError("the device is on fire")
        measure_base(self)

    monkeypatch.setattr(TaskRun, "measure_base", measure_or_fail)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient", watcher=Acting(3, hand_in_three))
    with pytest.raises(TasksFailedError) as caught:
        session.run()
    assert set(caught.value.results) == {"patient", "late"}
    assert "files that are not a run's" in str(caught.value.failures["taken"])
    assert "could not begin: RuntimeError: the device is on fire" in str(caught.value.failures["broken"])
    assert (in_any_order(tmp_path / "patient"), in_any_order(tmp_path / "late")) == alone
    monkeypatch.undo()
    resume(tmp_path / "broken")
    assert in_any_order(tmp_path / "broken") == alone[1]


def test_a_session_that_was_interrupted_takes_further_tasks(
    folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome]
) -> None:
    session = Session(options=OPTIONS, clock=TickingClock())
    interrupt = Acting(9, lambda: signal.raise_signal(signal.SIGINT))
    session.submit(patient_task(folder), tmp_path / "patient", name="patient", watcher=interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.run()
    assert session.run() == []
    session.submit(other_task(folder), tmp_path / "later", name="later")
    assert [result.name for result in session.run()] == ["later"]
    resume(tmp_path / "patient")
    assert (in_any_order(tmp_path / "patient"), in_any_order(tmp_path / "later")) == alone


def test_what_cannot_share_is_refused(folder: Path, tmp_path: Path) -> None:
    session = Session(options=OPTIONS)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient")
    with pytest.raises(InputError, match="the same target_modules"):
        session.submit(tiny_task(folder, lora={"target_modules": ["q_proj"]}), tmp_path / "one", name="one")
    with pytest.raises(InputError, match="a memory section that differs"):
        session.submit(tiny_task(folder, memory={"margin": 0.2}), tmp_path / "one", name="one")
    with pytest.raises(InputError, match="'patient' twice"):
        session.submit(patient_task(folder), tmp_path / "two", name="patient")
    write_tiny_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    with pytest.raises(InputError, match="a base model that the session"):
        session.submit(tiny_task(folder, model_name_or_path=str(tmp_path / "model")), tmp_path / "three", name="three")
    assert not (tmp_path / "one").exists()


def test_a_task_leaves_and_comes_back_while_another_trains(
    folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, divided = list[TaskEnd](), list[Path]()
    # a CPU keeps no states on a device, so the parts are of nothing
    monkeypatch.setattr(TrialStateStore, "limit_device", lambda self, _: divided.append(self._files._directory.root))

    def on_end(end: TaskEnd) -> None:
        ends.append(end)
        # its directory is free at once
        assert RunDirectory(tmp_path / end.name).lock().holder() is None
        if end.has_left:
            assert session.resume(tmp_path / end.name)

    session = Session(options=OPTIONS, clock=TickingClock(), on_end=on_end)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient")
    leaving = Acting(4, lambda: session.leave("other"))
    session.submit(other_task(folder, priority=5), tmp_path / "other", name="other", watcher=leaving)
    assert [result.name for result in session.run()] == ["patient", "other"]
    assert [(end.name, end.has_left) for end in ends if end.has_left] == [("other", True)]
    assert {end.name for end in ends if not end.has_left} == {"patient", "other"}
    # when both are there, again when one of them is back, and at the end of one
    assert {path.name for path in divided} == {"patient", "other"}
    assert len(divided) >= 4
    assert (in_any_order(tmp_path / "patient"), in_any_order(tmp_path / "other")) == alone


def test_an_error_of_one_task_ends_that_task_alone(
    folder: Path, tmp_path: Path, alone: tuple[Outcome, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, ends = Supervisor.checkpoint_when_due, list[TaskEnd]()
    broken: list[bool] = []

    def checkpoint_or_fail(self: Supervisor) -> None:
        if broken and self._run.directory.root.name == "other":
            raise StorageFullError("no space is left for other")
        checkpoint(self)

    monkeypatch.setattr(Supervisor, "checkpoint_when_due", checkpoint_or_fail)
    # a checkpoint after every step
    options = replace(OPTIONS, checkpoint_seconds=0.0)
    session = Session(options=options, clock=TickingClock(), on_end=ends.append)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient")
    fails = Acting(3, lambda: broken.append(True))
    session.submit(other_task(folder, priority=5), tmp_path / "other", name="other", watcher=fails)
    with pytest.raises(TasksFailedError) as caught:
        session.run()
    assert set(caught.value.results) == {"patient"}
    assert [end.name for end in ends] == ["other", "patient"]
    assert isinstance(ends[0].error, StorageFullError)
    assert in_any_order(tmp_path / "patient") == alone[0]
    monkeypatch.undo()
    resume(tmp_path / "other")
    assert in_any_order(tmp_path / "other") == alone[1]


def test_what_the_running_executor_has_no_room_for_is_refused(folder: Path, tmp_path: Path) -> None:
    session = Session(options=OPTIONS, clock=TickingClock())
    found: list[CannotShareError] = []

    def hand_in() -> None:
        sections: dict[str, dict[str, Any]] = {"search": {"space": {"r": [256]}}, "lora": {"use_dora": True}}
        for name, section in sections.items():
            with pytest.raises(CannotShareError) as refused:
                session.submit(tiny_task(folder, **{name: section}), tmp_path / name)
            found.append(refused.value)

    watcher = Acting(1, hand_in)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient", watcher=watcher)
    assert [result.name for result in session.run()] == ["patient"]
    assert "rank rows of the running session" in str(found[0])
    assert "variant of LoRA" in str(found[1])


def test_the_executor_has_room_for_a_task_that_comes_just_before_it_is_built(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(options=OPTIONS)
    session.submit(patient_task(folder), tmp_path / "patient", name="patient")
    plain_open = session._open_executor

    def hand_in_and_open(waiting: list[Any]) -> Any:
        session.submit(tiny_task(folder, search={"space": {"r": [256]}}), tmp_path / "wide", name="wide")
        return plain_open(waiting)

    monkeypatch.setattr(session, "_open_executor", hand_in_and_open)
    assert [result.name for result in session.run()] == ["patient", "wide"]


def test_a_run_that_was_handed_in_and_never_joined_is_given_back(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(
            other_task(folder),
            tmp_path / "other",
            watcher=Acting(2, lambda: signal.raise_signal(signal.SIGINT)),
            clock=TickingClock(),
        )
    session = Session(options=OPTIONS)
    assert session.resume(tmp_path / "other")
    lock = RunDirectory(tmp_path / "other").lock()
    assert lock.holder() is not None
    session.close()
    assert lock.holder() is None
    assert session.run() == []
