"""A task that was handed in to a session that tasks share, and how its run is opened once it joins."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.core.clock import Clock
from cohort.core.errors import CohortError, RunStateError
from cohort.engine.run_resume import ReadyRun
from cohort.engine.run_start import begun_run, new_directory
from cohort.engine.train.isolation import one_line
from cohort.engine.train.open_run import RunOptions
from cohort.engine.train.task_run import TaskRun
from cohort.engine.train.task_session import TaskSession
from cohort.engine.train.watching.progress import ProgressWatcher
from cohort.memory.sizes import size_facts
from cohort.prepare.preparation import Preparation
from cohort.runs.facts import PassFacts

__all__ = ["SubmittedTask", "task_error"]


@dataclass(frozen=True, kw_only=True)
class SubmittedTask:
    """A task whose inputs have been read.

    Attributes:
        name: In results.
        directory: Its run's.
        ready: The run that it continues; None begins one.
    """

    name: str
    directory: Path
    preparation: Preparation
    watcher: ProgressWatcher
    ready: ReadyRun | None = None

    @property
    def threads(self) -> int | None:
        """CPU threads that the continued run began with; None for a new run."""
        return None if self.ready is None or self.ready.facts is None else self.ready.facts.machine.threads

    def join(
        self,
        session: TaskSession,
        *,
        options: RunOptions,
        clock: Clock,
        num_tasks: int,
        held: contextlib.ExitStack,
    ) -> TaskRun:
        """Open the run and let the task join.

        Args:
            num_tasks: Tasks that the session was handed so far.
            held: Gives back the run's lock and its record.
        """
        # what the task asked for by itself does not hold in the session's executor
        sizes = session.sizes
        passes = PassFacts(recomputed_above_tokens=sizes.executor.keep_tokens)
        facts = replace(self.preparation.facts, sizes=size_facts(sizes), passes=passes)
        preparation = replace(self.preparation, sizes=sizes, facts=facts)
        if self.ready is not None:
            ready = held.enter_context(self.ready).with_preparation(preparation)
            run, checkpoint = held.enter_context(
                ready.opened(watcher=self.watcher, options=options, clock=clock, num_tasks=num_tasks)
            )
            return session.join(preparation, run, checkpoint=checkpoint)
        directory = held.enter_context(new_directory(self.directory, preparation.task))
        begun = begun_run(
            preparation, directory, watcher=self.watcher, options=options, clock=clock, num_tasks=num_tasks
        )
        return session.join(preparation, held.enter_context(begun))

    def give_back(self) -> None:
        """Unlock the run directory of a task that does not join."""
        if self.ready is not None:
            with self.ready:
                pass


def task_error(directory: Path, error: Exception, what: str) -> CohortError:
    """Return the error that kept the task of ``directory`` from doing ``what``, in a form that results can carry."""
    if isinstance(error, CohortError):
        return error
    # nothing of ours: it stays the cause, for those who want to see where it came from
    found = RunStateError(f"{directory}: the task could not {what}: {one_line(error)}")
    found.__cause__ = error
    return found
