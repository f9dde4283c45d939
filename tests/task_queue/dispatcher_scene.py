"""A queue on pretended workers and a clock that is set, for tests of its dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cohort.core.clock import ManualClock
from cohort.core.errors import InputError, Problem
from cohort.core.process.interrupts import StopRequest
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.dispatcher import Dispatcher
from cohort.task_queue.progress import QueueProgress
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from tests.scheduling.placement.placement_instances import small_work
from tests.task_queue.fake_pool import FakePool

__all__ = ["Scene", "all_done"]


class Scene:
    """A queue with pretended workers; ``at`` does something at a moment of the clock."""

    def __init__(self, folder: Path, seconds: Mapping[str, float], *, num_slots: int = 2, **pool: Any) -> None:
        self.clock = ManualClock()
        self.pool = FakePool(clock=self.clock, num_slots=num_slots, seconds=seconds, **pool)
        self.directory = folder
        self.store = QueueStore.open(folder / "queue.db", create=True)
        self.stop = StopRequest()
        self.notes: list[str] = []
        self.progress: QueueProgress | None = None
        self.degrees: dict[str, tuple[int, ...]] = {}
        self.actions: list[tuple[float, Callable[[], None]]] = []
        self.keys: dict[str, str] = {}

    def add(
        self,
        name: str,
        *,
        priority: int = 0,
        expected: float | None = None,
        degrees: tuple[int, ...] = (1,),
        tenant: str = "",
        weight: float = 1.0,
    ) -> None:
        self.degrees[name] = degrees
        source = self.directory / f"{name}.yaml"
        source.write_text("{}")
        self.store.add(
            [
                QueuedTask(
                    name=name,
                    source=str(source),
                    task={},
                    digests={},
                    priority=priority,
                    added_at="",
                    expected_seconds=self.pool.seconds[name] if expected is None else expected,
                    tenant=tenant,
                    weight=weight,
                )
            ]
        )

    def withdraw(self, name: str) -> None:
        self.store.update(name, is_withdrawn=True)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        self.actions.append((seconds, action))

    def update(self, progress: QueueProgress) -> None:
        self.progress = progress

    def note(self, text: str) -> None:
        self.notes.append(text)

    def run(self, **settings: Any) -> dict[str, TaskState]:
        plain_wait = self.pool.wait

        def wait(timeout_seconds: float) -> Any:
            due = [action for seconds, action in self.actions if seconds <= self.clock.monotonic()]
            self.actions = [entry for entry in self.actions if entry[0] > self.clock.monotonic()]
            for action in due:
                action()
            assert self.clock.monotonic() < 1000, self.notes
            return plain_wait(timeout_seconds)

        self.pool.wait = wait  # type: ignore[method-assign]
        dispatcher = Dispatcher(
            self.store,
            self.pool,
            directory=self.directory,
            expect=self.expect,
            work=self.work,
            watcher=self,
            settings=DispatcherSettings(**settings),
            clock=self.clock,
            stop=self.stop,
        )
        try:
            dispatcher.run()
        finally:
            self.pool.wait = plain_wait  # type: ignore[method-assign]
        return self.states()

    def expect(self, task: QueuedTask) -> tuple[TaskOption, ...]:
        if task.name == "unfit":
            raise InputError(Problem(where="unfit", found="80 GiB", allowed="16 GiB", hint="Choose a smaller model."))
        left = self.pool.seconds[task.name] - self.pool.done[task.name]
        if not self.pool.done[task.name] and task.expected_seconds is not None:
            left = task.expected_seconds
        degrees = self.degrees.get(task.name, (1,))
        return tuple(TaskOption(num_gpus=degree, seconds=max(left, 1e-3) / degree) for degree in degrees)

    def work(self, task: QueuedTask) -> SharedWork | None:
        """A task with one small trial, whose steps cost hardly more with another one next to it."""
        if task.name not in self.keys:
            return None
        seconds = max(self.pool.seconds[task.name] - self.pool.done[task.name], 1.0)
        return small_work(self.keys[task.name], seconds=seconds)

    def states(self) -> dict[str, TaskState]:
        return {task.name: task.state for task in self.store.tasks()}

    def order(self) -> list[str]:
        return [task for _, _, task in self.pool.started]

    def has_decided(self, kind: str, text: str) -> bool:
        return any(decision.kind == kind and text in decision.text for decision in self.store.decisions())


def all_done(states: Mapping[str, TaskState]) -> bool:
    return set(states.values()) == {TaskState.DONE}
