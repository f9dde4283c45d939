"""Nodes that run jobs with the service's own runner, its queue and its files; only training itself is pretended.

A node's dispatcher is pretended, too: it moves the tasks of the queue's database on, and dies with the node. The real
one has histories of its own (tests/task_queue/test_simulated_queue.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.local_queue import LocalQueue
from cohort.service.jobs.preparation import JobRefusedError
from cohort.service.jobs.runner import JobRunner
from cohort.service.jobs.runner_settings import RunnerSettings
from cohort.store.enums import JobStatus, UsageKind
from cohort.store.errors import StoreError
from cohort.store.jobs.claims import Claim, NewModel
from cohort.store.jobs.events import NewEvent
from cohort.store.records import Job
from cohort.store.store import Store
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.store import open_queue
from cohort.task_queue.workers.pool import PoolRequest

from .invariants import SUCCESS, Invariants
from .nodes import LEASE_SECONDS, TOKENS_A_STEP, TURN_SECONDS, steps_of
from .world import ProcessDied, World, WorldClock


class InlineExecutor(Executor):
    """Does at once what threads would do; a process that dies in one is dead."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future


class PretendedDispatcher:
    """Moves the tasks of a node's queue on, a few steps at each look. What it trained stays in run directories."""

    def __init__(self, world: World, directory: Path, steps: dict[str, int]) -> None:
        self._world, self._directory, self._steps = world, directory, steps
        self.is_alive = True
        with open_queue(directory) as store:
            # the one before was killed with its node
            for task in store.tasks():
                if task.state is TaskState.RUNNING:
                    store.update(task.name, state=TaskState.QUEUED)

    def keep_alive(self) -> None:
        with open_queue(self._directory) as store:
            for task in store.tasks():
                if task.is_withdrawn and not task.state.is_final:
                    store.update(task.name, state=TaskState.REMOVED)
                elif task.state is TaskState.QUEUED:
                    store.update(task.name, state=TaskState.RUNNING)
                elif task.state is TaskState.RUNNING:
                    self._train(store.update, task.name)

    def _train(self, update: Callable[..., object], name: str) -> None:
        if not self._world.is_calm and self._world.chance.random() < 0.02:
            self._steps[name] = self._steps.get(name, 0) // 2
            self._world.say(f"the worker of {name[-6:]} dies")
            return
        self._steps[name] = self._steps.get(name, 0) + self._world.chance.randint(1, 3)
        if self._steps[name] >= steps_of(name):
            update(name, state=TaskState.DONE)

    def stop(self, *, wait_seconds: float) -> bool:
        del wait_seconds
        return True


class RunnerNode:
    """One node; its process dies and begins again with what is on its disk."""

    def __init__(self, world: World, store: Store, invariants: Invariants, *, name: str, folder: Path) -> None:
        self._world, self._store, self._invariants = world, store, invariants
        self.name, self._folder, self._steps = name, folder, dict[str, int]()
        self._begin()
        world.after(TURN_SECONDS, self._wake)

    def _begin(self) -> None:
        folder, clock = self._folder, WorldClock(self._world)
        settings = RunnerSettings(lease_seconds=LEASE_SECONDS, most_jobs=3, grace_seconds=60.0, min_free_bytes=0)
        self._runner = JobRunner(
            self._store,
            folder=folder,
            name=self.name,
            bases={"base": BaseForJobs(name="base", path="base", max_length=64)},
            places=PoolRequest(),
            settings=settings,
            clock=clock,
        )
        queue = LocalQueue(folder / "queue", runs=folder / "runs", clock=clock)
        self._queue = queue
        self._dispatcher = PretendedDispatcher(self._world, queue.directory, self._steps)
        self._parts = self._runner.parts(queue, InlineExecutor())

    def _wake(self) -> None:
        pause = TURN_SECONDS
        try:
            if not self._world.is_calm and self._world.chance.random() < 0.01:
                raise ProcessDied
            self._runner.turn(self._parts, self._dispatcher)
        except ProcessDied:
            self._world.say(f"{self.name} dies with {self._runner.num_held} jobs")
            self._queue.close()
            self._begin()
            pause = self._world.chance.choice((2.0, 20.0, 90.0))
        except StoreError as error:
            # the runner's thread would drop all its jobs and begin again
            self._invariants.require(False, f"the runner of {self.name} failed: {error}")
        if not self._world.is_calm and self._world.chance.random() < 0.03:
            pause = self._world.chance.choice((25.0, 70.0))
            self._world.say(f"{self.name} freezes")
        self._world.after(pause, self._wake)


def runner_nodes(world: World, store: Store, invariants: Invariants, folder: Path) -> Sequence[object]:
    return [
        RunnerNode(world, store, invariants, name=f"node{number}", folder=folder / f"node{number}")
        for number in range(world.chance.randint(1, 3))
    ]


@contextmanager
def pretended_training() -> Iterator[None]:
    """Have rows not read, and adapters not written: what a job leaves is a name and a number of tokens."""
    with ExitStack() as stack:
        for name, instead in (
            ("held_job.prepare_job", _prepare),
            ("held_job.publish", _publish),
            ("held_job.task_of_document", lambda document, *, name: (document, name)),
            ("local_queue.submission_of", _submission),
        ):
            stack.enter_context(patch(f"cohort.service.jobs.{name}", instead))
        yield


def _prepare(job: Job, folder: JobFolder, **_: Any) -> None:
    if sum(map(ord, job.id)) % 20 == 0:
        raise JobRefusedError("its rows are wrong", code="invalid_training_file", param="training_file")
    folder.keep_task({"model": "base"})


def _publish(store: Store, claim: Claim, job: Job, *, folder: JobFolder, run: Path, organisation: str) -> Job:
    del folder, run, organisation
    return store.claims.update(
        claim,
        status=JobStatus.SUCCEEDED,
        model=NewModel(id=f"ft:{job.id}", blob=None),
        usage={UsageKind.TRAINED_TOKENS: float(steps_of(job.id) * TOKENS_A_STEP)},
        events=[NewEvent(message=SUCCESS)],
    )


def _submission(name: str, task: object, **_: Any) -> QueuedTask:
    del task
    return QueuedTask(name=name, source="", task={}, digests={}, priority=0, added_at="")
