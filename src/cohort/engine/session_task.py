"""A task of a session: handed in with its inputs read, then a run that trains, then results or an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from cohort.checkpoints.checkpoints import Manifest
from cohort.core.errors import CohortError, RunStateError, StorageFullError
from cohort.engine.run_resume import ReadyRun
from cohort.engine.run_start import begun_run, new_directory
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.isolation import one_line
from cohort.engine.train.joining import join_executor
from cohort.engine.train.open_run import OpenRun, RunConditions
from cohort.engine.train.spare_writer import SpareWriter
from cohort.engine.train.task_run import TaskRun
from cohort.memory.budget import Sizes, size_facts
from cohort.prepare.preparation import Preparation
from cohort.ranks.training_executor import TrainingExecutor
from cohort.runs.directory import RunDirectory
from cohort.runs.fact_groups import PassFacts

__all__ = ["SessionTask", "TaskEnd", "task_error"]


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """How a task of a session ended.

    Attributes:
        name: Of the task.
        error: What ended it; None where its results are written, or where it left.
        has_left: It was asked to leave: its state is saved, and it is not done.
    """

    name: str
    error: CohortError | None = None
    has_left: bool = False


@dataclass(eq=False, kw_only=True)
class SessionTask:
    """A task that was handed in to a session, and what it holds until it ends.

    Attributes:
        name: In results.
        directory: Its run's.
        preparation: The task, its inputs and its trials.
        conditions: The caller's watcher and callbacks, and the session's options and clock.
        ready: The run that it continues, locked; None begins one.
        tenant: Whose share of the base model it uses.
        is_done: Whether its results are written, and what no result needs.
    """

    name: str
    directory: Path
    preparation: Preparation
    conditions: RunConditions
    ready: ReadyRun | None = None
    tenant: str = ""
    is_done: bool = False
    _run: TaskRun | None = None
    _spares: SpareWriter | None = None
    _new: RunDirectory | None = None
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        if self.ready is not None:
            self._held.enter_context(self.ready)

    @property
    def threads(self) -> int | None:
        """CPU threads that the continued run began with; None for a new run."""
        return None if self.ready is None or self.ready.facts is None else self.ready.facts.machine.threads

    def claim(self) -> RunDirectory | None:
        """Make and lock the directory of a new run and return it; None where a run goes on, which is locked already.

        Raises:
            InputError: the directory holds other files.
        """
        if self.ready is None and self._new is None:
            self._new = self._held.enter_context(new_directory(self.directory, self.preparation.task))
        return self._new

    def join(
        self,
        executor: TrainingExecutor,
        *,
        sizes: Sizes | None,
        place: int,
        num_tasks: int,
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Open the run and have it join an executor.

        Args:
            sizes: The executor's.
            place: As of :func:`~cohort.engine.train.joining.join_executor`.
            num_tasks: Tasks that share the memory for parked states.
            turn: As of :func:`~cohort.engine.train.joining.join_executor`.
        """
        assert sizes is not None, "the executor was built"
        if self.ready is None or self.ready.facts is None:
            # while the record begins and the base model is measured
            share = ExecutorShare(executor, rows=self.preparation.inputs.data.train, place=place, turn=turn)
            share.draw_ahead(trial.spec for trial in self.preparation.proposals.first)
        if self.preparation.sizes != sizes:
            # what the task asked for by itself does not hold in an executor that was built for another
            passes = PassFacts(recomputed_above_tokens=sizes.executor.keep_tokens)
            facts = replace(self.preparation.facts, sizes=size_facts(sizes), passes=passes)
            self.preparation = replace(self.preparation, sizes=sizes, facts=facts)
        run, checkpoint = self._open(replace(self.conditions, num_tasks=num_tasks))
        self._run = join_executor(executor, self.preparation, run, place=place, checkpoint=checkpoint, turn=turn)

    def _open(self, conditions: RunConditions) -> tuple[OpenRun, Manifest | None]:
        directory = self.claim()
        if directory is None:
            assert self.ready is not None, "a new run has a directory"
            return self._held.enter_context(self.ready.with_preparation(self.preparation).opened(conditions))
        return self._held.enter_context(begun_run(self.preparation, directory, conditions)), None

    @property
    def has_joined(self) -> bool:
        return self._run is not None

    @property
    def run(self) -> TaskRun:
        """Its run, once it has joined."""
        assert self._run is not None, "the task has joined"
        return self._run

    @property
    def spares(self) -> SpareWriter:
        """What writes its spare checkpoints, once its results are written."""
        assert self._spares is not None, "the results are written"
        return self._spares

    def finish(self, *, was_alone: bool, make_room: Callable[[], bool]) -> None:
        """Write the results, and begin with what no result needs; the arguments are those of :meth:`TaskRun.finish`.

        Raises:
            RunStateError: there is no best adapter; all else is written.
            StorageFullError: the disk is full.
        """
        try:
            self.run.finish(was_alone=was_alone, make_room=make_room)
        except StorageFullError:
            raise
        except RunStateError:
            # without a best adapter as well: what there is can be exported
            self.run.write_spares().wait()
            raise
        self._spares = self.run.write_spares()

    def give_back(self) -> None:
        """Close its record and unlock its directory."""
        self._held.close()


def task_error(directory: Path, error: Exception, what: str) -> CohortError:
    """Return the error that kept the task of ``directory`` from doing ``what``, in a form that results can carry."""
    if isinstance(error, CohortError):
        return error
    # nothing of ours: it stays the cause, for those who want to see where it came from
    found = RunStateError(f"{directory}: the task could not {what}: {one_line(error)}")
    found.__cause__ = error
    return found
