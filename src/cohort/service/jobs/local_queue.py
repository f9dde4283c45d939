"""The queue of this node: jobs as tasks in it. A job's task has the job's id as its name."""

from __future__ import annotations

from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.runs.directory import QUEUE_DATABASE, RunDirectory
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.store import QueueStore, queue_holder
from cohort.task_queue.submission import submission_of
from cohort.tasks.loading import TaskFile

__all__ = ["LocalQueue"]


class LocalQueue:
    """Adds tasks, takes them out and looks at them; a dispatcher works them off. Use it from one thread."""

    def __init__(self, directory: Path, *, runs: Path, clock: Clock | None = None) -> None:
        """Open the queue in ``directory``, made where there is none.

        Args:
            runs: Where the run directories really are: another node that sees them goes on with them.
        """
        self.directory, self._runs, self._clock = directory, runs, clock or SystemClock()
        directory.mkdir(parents=True, exist_ok=True)
        runs.mkdir(parents=True, exist_ok=True)
        self._store = QueueStore.open(directory / QUEUE_DATABASE, create=True)

    def close(self) -> None:
        self._store.close()

    def run_directory(self, job_id: str) -> Path:
        return self._runs / job_id

    def tasks(self) -> dict[str, QueuedTask]:
        """Return what is in the queue, by job."""
        return {task.name: task for task in self._store.tasks()}

    def put(self, job_id: str, task: TaskFile, *, tenant: str = "", weight: float = 1.0) -> None:
        """Add a job that is new here, or put back one that was taken out.

        Args:
            tenant, weight: Whose share of a base model it uses, where its base is shared.
        """
        found = self._store.task(job_id)
        if found is not None and found.state is not TaskState.REMOVED:
            return
        if found is not None and RunDirectory.find_problem(self.directory / job_id) is not None:
            # the same task goes on in its run directory
            self._store.update(job_id, state=TaskState.QUEUED, reason="", is_withdrawn=False, attempts=0)
            return
        target, link = self.run_directory(job_id), self.directory / job_id
        target.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target.absolute(), target_is_directory=True)
        self._store.add([submission_of(job_id, task, clock=self._clock, tenant=tenant, weight=weight)])

    def put_back(self, job_id: str) -> None:
        """Try a task again that failed for a reason that is over."""
        self._store.update(job_id, state=TaskState.QUEUED, reason="", is_withdrawn=False, attempts=0)

    def take_out(self, job_id: str) -> bool:
        """Ask for a task to leave; return whether it has. One that runs saves its state first."""
        found = self._store.task(job_id)
        if found is None or found.state.is_final:
            return True
        self._store.update(job_id, is_withdrawn=True)
        # a dispatcher has to stop a task's worker first, so it removes the task itself
        if found.state is TaskState.QUEUED and queue_holder(self.directory) is None:
            self._store.update(job_id, state=TaskState.REMOVED, reason="taken out")
            return True
        return False
