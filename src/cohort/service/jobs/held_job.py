"""One job that this node holds: from its files to its model, step by step. The database says what is wanted.

Each step looks at three things and does at most one: the job's status, its task in the queue, its run's record. A
process that is killed in between finds the same three things again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError, InputError, RunStateError, StorageFullError
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.requests.asking import ask
from cohort.runs.requests.trial_requests import RequestKind, TrialRequest
from cohort.runs.status import read_status
from cohort.service.fine_tuning.schema import CreateJob
from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_parts import JobParts
from cohort.service.jobs.preparation import JobRefusedError, client_words, prepare_job, task_of_document
from cohort.service.jobs.publishing import publish, remove_unused_results
from cohort.service.jobs.run_news import read_news
from cohort.service.jobs.run_usage import usage_of_run
from cohort.store.enums import EventLevel, JobKind, JobStatus, UsageKind
from cohort.store.errors import IllegalTransitionError, LeaseLostError, StorageFull, StoreUnavailable
from cohort.store.jobs.claims import Claim
from cohort.store.jobs.events import NewEvent
from cohort.store.jobs.transitions import ENDED
from cohort.store.records import Job
from cohort.task_queue.records import QueuedTask, TaskState

__all__ = ["HeldJob"]

_log = logging.getLogger(__name__)
# of an error: its first lines say what to do, and a thousand row problems help no reader
_MOST_ERROR_LETTERS = 4000


class HeldJob:
    """Moves one job on.

    Attributes:
        is_over: Whether this node has nothing left to do with it.
    """

    def __init__(self, parts: JobParts, claim: Claim, job: Job) -> None:
        self._parts, self.claim, self.job = parts, claim, job
        self._base = parts.base_of(job.base_model)
        self.folder = JobFolder(parts.folders, job.id)
        # one that is gone on with needs no room on a full disk
        if self.folder.claim != claim:
            self.folder.keep_claim(claim)
        self._work: Future[Any] | None = None
        self._told: Mapping[UsageKind, float] = {}
        self.is_over = False

    def renewed(self, job: Job) -> None:
        """Take in the job as the database has it now."""
        self.job = job

    def look(self) -> None:
        """Read the job again.

        Raises:
            LeaseLostError: it is another node's, or was cancelled.
        """
        job = self._parts.store.project(self.claim.project_id).jobs.get(self.job.id)
        if (job.lease_token, job.lease_owner) != (self.claim.token, self.claim.owner):
            raise LeaseLostError(f"job {job.id} is no longer this node's")
        self.renewed(job)

    @property
    def run_seconds(self) -> float:
        """Seconds that the job's run has trained so far."""
        try:
            with RunReader.open(RunDirectory(self._parts.queue.run_directory(self.job.id)).database) as reader:
                return reader.run_seconds()
        except CohortError:
            return 0.0

    def lost(self) -> None:
        """Take in that the job is another node's, or was cancelled; call it again until :attr:`is_over`."""
        if self._work is not None and not self._work.done():
            # it would write to the job's folder once more
            return
        if self._parts.queue.take_out(self.job.id):
            project = self._parts.store.project(self.claim.project_id)
            if self.job.status not in ENDED:
                # cancelled: the claim was taken away with the change, and the job read before it
                self.renewed(project.jobs.get(self.job.id))
            if self.job.status in ENDED and (usage := self._usage()):
                # its run went on until now
                project.usage.settle_job(self.job.id, usage)
            self._give_up()

    def tell_usage(self) -> None:
        """Tell what the job has used so far, if that is more than was told.

        Raises:
            LeaseLostError: the job is another node's, or was cancelled.
        """
        usage = self._usage()
        if usage != self._told:
            self._update(usage)

    def _usage(self) -> Mapping[UsageKind, float]:
        return usage_of_run(self._parts.queue.run_directory(self.job.id))

    def step(self, task: QueuedTask | None) -> None:
        """Do what is next.

        Args:
            task: The job's task in the queue of this node.

        Raises:
            LeaseLostError: the job is another node's, or was cancelled.
            StorageFull, StoreUnavailable: nothing was done; try again.
        """
        if self._work is not None:
            self._finish_work()
            return
        status = self.job.status
        if status in ENDED:
            self.lost()
        elif status is JobStatus.PAUSED:
            self._pause(task)
        elif status is JobStatus.VALIDATING_FILES or self.folder.task is None:
            self._begin_work(self._prepare)
        elif status is JobStatus.QUEUED:
            self._queue_or_run(task)
        elif status is JobStatus.RUNNING:
            self._run(task)
        elif status is JobStatus.PAUSING:
            self._pause(task)

    # ---- what takes long, in a thread

    def _begin_work(self, work: Callable[[], Any]) -> None:
        self._work = self._parts.threads.submit(work)

    def _finish_work(self) -> None:
        assert self._work is not None, "it was begun"
        if not self._work.done():
            return
        work, self._work = self._work, None
        try:
            work.result()
        except JobRefusedError as error:
            self._fail(str(error), code=error.code, param=error.param)
        except (StoreUnavailable, StorageFull, StorageFullError, LeaseLostError, IllegalTransitionError):
            raise
        except RunStateError as error:
            self._fail(str(error), code="no_result", param=None)
        except InputError as error:
            self._fail(str(error), code="invalid_job", param=None)
        except Exception:
            # raised further it would end the jobs of all others, again and again
            _log.exception("job %s failed in this server", self.job.id)
            self._fail("The server failed on this job; its log says why.", code="server_error", param=None)

    def _prepare(self) -> None:
        files = self._parts.store.project(self.job.project_id).files
        limits = self._parts.settings.check
        prepare_job(self.job, self.folder, base=self._base, content=files.content_for_job, limits=limits)
        if self.job.status is JobStatus.VALIDATING_FILES:
            # the claim ends with it: whose turn it is to train is decided among all that wait
            self._write(JobStatus.QUEUED, "Files validated, moving job to queued state")
            self._give_up()

    def _publish(self) -> None:
        run = self._parts.queue.run_directory(self.job.id)
        organisation = self._parts.organisation_of(self.job.project_id)
        self._tell_news(run)
        job = publish(self._parts.store, self.claim, self.job, folder=self.folder, run=run, organisation=organisation)
        self.renewed(job)
        self._give_up()

    # ---- steps

    def _queue_or_run(self, task: QueuedTask | None) -> None:
        if task is None or task.state is TaskState.REMOVED:
            document = self.folder.task
            assert document is not None, "a job is prepared before it is queued"
            own, project = task_of_document(document, name=self.job.id), self.job.project_id
            self._parts.queue.put(self.job.id, own, tenant=project, weight=self._parts.weight_of(project))
        elif task.state is TaskState.RUNNING or task.state.is_final:
            resumed = " again" if self.job.started_at is not None else ""
            self._write(JobStatus.RUNNING, f"Fine-tuning job started{resumed}")

    def _run(self, task: QueuedTask | None) -> None:
        if task is None or task.state is TaskState.REMOVED:
            self._queue_or_run(task)
            return
        run = self._parts.queue.run_directory(self.job.id)
        if task.state is TaskState.DONE:
            self._begin_work(self._publish)
        elif task.state in (TaskState.FAILED, TaskState.HELD):
            self._fail(task.reason, code="training_failed", param=None)
        else:
            self._tell_news(run)
            self._keep_budget(run)

    def _pause(self, task: QueuedTask | None) -> None:
        if task is not None and task.state is TaskState.DONE and self.job.status is JobStatus.PAUSING:
            self._begin_work(self._publish)
            return
        if task is not None and not self._parts.queue.take_out(self.job.id):
            return
        if self.job.status is JobStatus.PAUSING:
            self._tell_news(self._parts.queue.run_directory(self.job.id))
            self._write(JobStatus.PAUSED, "The job has been paused.")
        else:
            self._parts.store.claims.release(self.claim)
        self._give_up()

    def pause_for_room(self) -> None:
        """Pause a running job because the disk is nearly full; the runner resumes it once there is room.

        Raises:
            LeaseLostError: it was cancelled.
        """
        if not self._trains():
            return
        self.look()
        # its client may have paused it, and would not have it resumed
        if not self._trains():
            return
        self.folder.note(waits_for_room=self.job.project_id)
        text = "The server's disk is nearly full: the job is paused, and resumes by itself once there is room"
        event = NewEvent(message=text, level=EventLevel.WARN)
        try:
            self._update(status=JobStatus.PAUSING, events=[event])
        except (LeaseLostError, IllegalTransitionError):
            self.folder.note(waits_for_room=None)
            raise

    def _trains(self) -> bool:
        return self.job.status is JobStatus.RUNNING and self._work is None

    def park(self) -> None:
        """Give the job back because this node stops: another, or the same later, goes on."""
        if self.job.status in ENDED:
            # one whose worker has not saved its state is let go of at the next start
            self.lost()
            return
        if self.job.status is JobStatus.RUNNING:
            self._write(JobStatus.QUEUED, "The server stops; the job is saved and will go on")
        else:
            self._parts.store.claims.release(self.claim)
        self._give_up()

    def _give_up(self) -> None:
        if self.job.status in ENDED:
            remove_unused_results(self._parts.store.project(self.claim.project_id), self.job, self.folder)
            # a client's rows stay no longer than they are needed
            self.folder.remove()
        else:
            self.folder.drop_claim()
        self.is_over = True

    # ---- what is reported

    def _write(self, status: JobStatus, message: str, **values: Any) -> None:
        # from the folder of all nodes on: NODE/runs/JOB says which server has it
        values.setdefault("run_directory", "/".join(self._parts.queue.run_directory(self.job.id).parts[-3:]))
        events = [NewEvent(message=message)]
        self._update(status=status, events=events, **values)

    def _update(self, usage: Mapping[UsageKind, float] | None = None, **values: Any) -> None:
        # each write to the store carries what the run has used so far
        usage = self._usage() if usage is None else usage
        self.renewed(self._parts.store.claims.update(self.claim, usage=usage, **values))
        self._told = usage

    def _fail(self, message: str, *, code: str, param: str | None) -> None:
        text = client_words(message, job=self.job, folder=self.folder, base=self._base)
        # what else names a place names one of this server
        text = text.replace(str(self._parts.folders.parent), "")[:_MOST_ERROR_LETTERS]
        error: Mapping[str, Any] = {"code": code, "message": text, "param": param}
        event = NewEvent(message=text, level=EventLevel.ERROR)
        self._update(status=JobStatus.FAILED, error=error, events=[event])
        self._give_up()

    def _tell_news(self, run: Path) -> None:
        database = RunDirectory(run).database
        if not database.is_file():
            return
        after = int(self.folder.notes.get("position", 0))
        try:
            with RunReader.open(database) as reader:
                news = read_news(reader, after=after)
            status = read_status(RunDirectory(run)) if news else None
        except CohortError:
            # its first moments, before it has tables; or another process is at its file
            return
        if not news or status is None:
            return
        events = [
            NewEvent(
                message=each.message,
                level=EventLevel(each.level),
                type="metrics" if each.is_metrics else "message",
                data=dict(each.data),
                key=each.key,
            )
            for each in news
        ]
        finish = None
        if status.seconds_left is not None:
            with self._parts.store.database.read() as connection:
                finish = self._parts.store.database.now(connection) + status.seconds_left
        self._update(events=events, estimated_finish=finish, trained_tokens=status.results.compute.trained_tokens)
        # killed before this, the same events are told once more, and the store knows them by their keys
        self.folder.note(position=news[-1].position)

    def _keep_budget(self, run: Path) -> None:
        """Stop what still trains once the job's time is used up; the best so far is its result."""
        budget = self._budget() if self.job.kind is JobKind.FINE_TUNING else None
        if budget is None or self.folder.notes.get("is_over_budget"):
            return
        try:
            with RunReader.open(RunDirectory(run).database) as reader:
                seconds, trials = reader.run_seconds(), reader.trials()
        except CohortError:
            return
        if seconds < budget or not any(trial.best_step is not None for trial in trials):
            return
        for trial in trials:
            if not trial.status.is_final:
                request = TrialRequest(kind=RequestKind.STOP, trial_id=trial.trial_id, who="time_budget_seconds")
                try:
                    ask(run, request, wait_seconds=0.0)
                except InputError:
                    # it ended meanwhile
                    continue
        self.folder.note(is_over_budget=True)
        text = f"The time budget of {budget:g} seconds is used up: trials that still run are stopped"
        self._update(events=[NewEvent(message=text, level=EventLevel.WARN)])

    def _budget(self) -> float | None:
        return CreateJob.model_validate(dict(self.job.request)).options.time_budget_seconds
