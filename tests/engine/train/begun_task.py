"""A run of six trials that has begun, for tests of what is between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cohort.core.clock import ManualClock
from cohort.engine.run_start import prepare_task
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun, RunConditions
from cohort.engine.train.task_run import TaskRun
from cohort.prepare.preparation import Preparation
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.tuning.decisions import DecisionKind
from tests.end_to_end.tiny_tasks import tiny_task
from tests.engine.train.fakes import FakeExecutor, Notes

__all__ = ["Begun", "prepared"]


class Begun:
    """A run of six trials that has begun, on an executor that only counts."""

    def __init__(self, folder: Path, run: OpenRun, preparation: Preparation) -> None:
        self.folder, self.run, self.preparation = folder, run, preparation
        clock: Any = run.clock
        self.executor = FakeExecutor(clock)
        self.executor.num_recomputed = 0  # type: ignore[attr-defined]
        self.task_run = self.joined(preparation)

    def joined(self, preparation: Preparation) -> TaskRun:
        executor: Any = self.executor
        return TaskRun(preparation, ExecutorShare(executor, rows=preparation.inputs.data.train), self.run)

    def again(self) -> TaskRun:
        """The run as another process finds it."""
        return self.joined(prepared(self.folder))

    def ask(self, kind: RequestKind, trial_id: int | None = None, **keys: Any) -> None:
        request = TrialRequest(kind=kind, trial_id=trial_id, who="ada", at="noon", **keys)
        self.task_run.control.submit(request)
        self.task_run.between_steps()

    @property
    def notes(self) -> list[str]:
        assert isinstance(self.run.watcher, Notes)
        return self.run.watcher.notes

    def decisions(self) -> list[tuple[int, DecisionKind]]:
        found = [entry.decision for entry in self.run.store.reader.log.decisions()]
        return [(decision.trial_id, decision.kind) for decision in found]


def prepared(folder: Path) -> Preparation:
    return prepare_task(tiny_task(folder), RunConditions(watcher=Notes(), clock=ManualClock()))
