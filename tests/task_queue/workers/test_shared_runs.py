"""A worker's tasks in one session: each reports its own end, and leaves behind the bits that it has alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError, Problem
from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import resume, tune
from cohort.task_queue.workers.messages import CannotShare, RunTask, TaskDone, TaskError, TaskStopped, WorkerReport
from cohort.task_queue.workers.shared_runs import SharedRuns, error_report
from tests.end_to_end.task_queue.test_shared_session import in_any_order
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("shared"))
    (folder / "empty.jsonl").touch()
    return folder


SECTIONS: dict[str, dict[str, Any]] = {
    # long enough for others to be read meanwhile
    "first": {"training": {"max_steps": 40}},
    "second": {"training": {"max_steps": 5, "seed": 3}, "search": {"space": {"learning_rate": [1e-2], "r": [3, 8]}}},
    "foreign": {"lora": {"target_modules": ["q_proj"]}},
    # alone it would be refused as well
    "broken": {"dataset": {"train": "empty.jsonl"}},
}


class Watching:
    """Watches all tasks: what each is told to do happens once, when its trials have done so many steps together."""

    def __init__(self) -> None:
        self.acts: dict[str, tuple[int, Callable[[], object]]] = {}

    def of(self, task: str) -> Any:
        return _Watcher(task, self)


class _Watcher:
    def __init__(self, task: str, all_tasks: Watching) -> None:
        self._task, self._all = task, all_tasks

    def update(self, progress: RunProgress) -> None:
        steps, act = self._all.acts.get(self._task, (0, None))
        if act and progress.phase == "training" and sum(trial.steps_done for trial in progress.trials) >= steps:
            del self._all.acts[self._task]
            act()

    def note(self, text: str) -> None: ...


def order(folder: Path, runs: Path, name: str) -> RunTask:
    resolved = tiny_task(folder, **SECTIONS[name]).model_dump(mode="json")
    options = {"checkpoint_seconds": 60.0}
    return RunTask(
        task=name,
        source=f"{name}.yaml",
        resolved=resolved,
        run_directory=str(runs / name),
        options=options,
        is_shared=True,
    )


def test_tasks_join_leave_and_end_by_themselves(folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, WorkerReport]] = []
    watching = Watching()

    def tell(task: str, report: WorkerReport) -> None:
        told.append((task, report))
        if report == TaskStopped(task="second"):
            # it comes back to where it left
            assert runs.join(order(folder, tmp_path, "second"))

    runs = SharedRuns(order(folder, tmp_path, "first"), tell=tell, watcher_of=watching.of)

    def hand_in() -> None:
        assert runs.join(order(folder, tmp_path, "second"))
        assert runs.join(order(folder, tmp_path, "foreign"))
        assert runs.join(order(folder, tmp_path, "broken"))

    watching.acts = {"first": (1, hand_in), "second": (1, lambda: runs.stop("second"))}
    runs.run()
    assert not runs.tasks
    assert not runs.join(order(folder, tmp_path, "foreign"))
    assert not runs.stop("first")
    kinds = {(task, type(report)) for task, report in told}
    assert kinds == {("first", TaskDone), ("second", TaskStopped), ("second", TaskDone), ("foreign", CannotShare)} | {
        ("broken", CannotShare)
    }
    refused = {report.task: report.reason for _, report in told if isinstance(report, CannotShare)}
    assert "target_modules" in refused["foreign"]
    assert "empty.jsonl" in refused["broken"]
    # nothing of a task that could not share was written
    assert not (tmp_path / "foreign").exists()
    for name in ("first", "second"):
        tune(tiny_task(folder, **SECTIONS[name]), tmp_path / "alone" / name)
        assert in_any_order(tmp_path / name) == in_any_order(tmp_path / "alone" / name)


def test_a_stop_of_all_saves_all(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[WorkerReport] = []
    runs = SharedRuns(
        order(folder, tmp_path, "first"), tell=lambda _, report: told.append(report), watcher_of=Watching().of
    )

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs._session, "run", interrupted)
    runs.run()
    assert told == [TaskStopped(task="first")]


def test_a_task_that_is_stopped_while_it_is_read_leaves_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, WorkerReport] = {}
    watching = Watching()
    runs = SharedRuns(order(folder, tmp_path, "first"), tell=told.__setitem__, watcher_of=watching.of)
    # before the session trains a signal stops the first task
    assert not runs.stop("first")
    submit = runs._session.submit

    def submit_late(*given: Any, **keywords: Any) -> None:
        if keywords["name"] == "second":
            # the first one has ended by then
            while "first" not in told:
                time.sleep(0.01)
            assert runs.stop("second")
        submit(*given, **keywords)

    monkeypatch.setattr(runs._session, "submit", submit_late)
    watching.acts = {"first": (1, lambda: runs.join(order(folder, tmp_path, "second")))}
    runs.run()
    assert told == {"first": TaskDone(task="first"), "second": TaskStopped(task="second")}
    assert not (tmp_path / "second").exists()


def test_a_done_run_is_reported_at_once(folder: Path, tmp_path: Path) -> None:
    tune(tiny_task(folder, **SECTIONS["second"]), tmp_path / "second")
    told: list[WorkerReport] = []
    SharedRuns(
        order(folder, tmp_path, "second"), tell=lambda _, report: told.append(report), watcher_of=Watching().of
    ).run()
    assert told == [TaskDone(task="second")]
    resume(tmp_path / "second")


def test_errors_are_told_apart() -> None:
    problem = Problem(where="a.yaml: lora.r", found="0", allowed="1 or more", hint="Write 8.")
    assert error_report("a", InputError(problem)).is_input_error
    assert error_report("a", ZeroDivisionError("by zero")) == TaskError(task="a", message="ZeroDivisionError: by zero")
