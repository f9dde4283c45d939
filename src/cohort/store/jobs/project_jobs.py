"""The jobs of one project, as its clients see and change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Row, Select
from sqlalchemy.exc import IntegrityError

from cohort.store.enums import JobKind, JobStatus
from cohort.store.errors import IllegalTransitionError, UnknownIdError
from cohort.store.jobs.events import NewEvent, add_events
from cohort.store.jobs.transitions import CLIENT_ACTIONS, may_become, sources_of
from cohort.store.pages import Order, Page, read_page
from cohort.store.random_names import new_id
from cohort.store.records import Checkpoint, Job, JobEvent, read_record
from cohort.store.scope import Scope
from cohort.store.storable import check_storable, is_storable_text
from cohort.store.tables import checkpoints, job_events, job_metadata, jobs
from cohort.store.tenants.audit import record_action
from cohort.store.tenants.usage import check_open_jobs, check_tokens, locked_project

__all__ = ["NewJob", "ProjectJobs"]

_Record = TypeVar("_Record")

# what comes from a client as it is
_CLIENTS_PARTS = (
    "base_model",
    "request",
    "method",
    "suffix",
    "seed",
    "training_file",
    "validation_file",
    "hyperparameters",
    "metadata",
    "idempotency_key",
)
_PREFIXES = {JobKind.FINE_TUNING: "ftjob-", JobKind.TASK: "task-"}


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job that is to be accepted. The fields are those of :class:`~cohort.store.records.Job`.

    Attributes:
        idempotency_key: A second job of the project with the same key is the first one.
    """

    base_model: str
    request: Mapping[str, Any]
    kind: JobKind = JobKind.FINE_TUNING
    status: JobStatus = JobStatus.VALIDATING_FILES
    method: str | None = None
    suffix: str | None = None
    seed: int = 0
    training_file: str | None = None
    validation_file: str | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] | None = None
    created_by: str | None = None
    idempotency_key: str | None = None


class ProjectJobs:
    """Creates, lists and changes the jobs of one project."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._database = scope.database

    def create(self, new: NewJob, *, events: Iterable[NewEvent] = ()) -> Job:
        """Accept a job: when this returns, it survives the death of every process.

        Raises:
            QuotaExceededError: the project has too many open jobs, or no tokens left today.
            InputError: the request holds text or numbers that no database can hold.
        """
        check_storable({name: getattr(new, name) for name in _CLIENTS_PARTS})
        try:
            with self._database.write() as connection:
                return self._create(connection, new, list(events))
        except IntegrityError:
            # another request with the same idempotency key was faster
            if new.idempotency_key is None:
                raise
            with self._database.read() as connection:
                known = self._known(connection, new.idempotency_key)
            if known is None:
                raise
            return known

    def _create(self, connection: Connection, new: NewJob, events: list[NewEvent]) -> Job:
        if new.idempotency_key is not None and (known := self._known(connection, new.idempotency_key)) is not None:
            return known
        project = locked_project(connection, self._scope.project_id)
        check_open_jobs(connection, project)
        now = self._database.now(connection)
        check_tokens(connection, project, seconds=now, wanted=1)
        job_id = new_id(self._scope.source, _PREFIXES[new.kind])
        self._scope.insert(
            connection,
            jobs,
            {
                "id": job_id,
                "kind": new.kind,
                "status": new.status,
                "base_model": new.base_model,
                "method": new.method,
                "suffix": new.suffix,
                "seed": new.seed,
                "training_file": new.training_file,
                "validation_file": new.validation_file,
                "request": dict(new.request),
                "hyperparameters": dict(new.hyperparameters),
                "metadata": None if new.metadata is None else dict(new.metadata),
                "has_metadata": bool(new.metadata),
                "idempotency_key": new.idempotency_key,
                "created_by": new.created_by,
                "result_files": [],
                "created_at": now,
                "changed_at": now,
                "num_events": 0,
                "lease_token": 0,
            },
        )
        row = self._scope.row(connection, jobs, "fine-tuning job", job_id)
        if new.metadata:
            own = {"job_id": job_id, "position": row.position}
            pairs = [{**own, "key": key, "value": value} for key, value in new.metadata.items()]
            self._scope.insert(connection, job_metadata, *pairs)
        add_events(connection, self._database, self._scope.source, job_id=job_id, events=events)
        self._database.announce(connection, kind="job", id=job_id)
        return read_record(Job, self._scope.row(connection, jobs, "fine-tuning job", job_id))

    def _known(self, connection: Connection, idempotency_key: str) -> Job | None:
        row = connection.execute(
            self._scope.select(jobs).where(jobs.c.idempotency_key == idempotency_key)
        ).one_or_none()
        return None if row is None else read_record(Job, row)

    def get(self, job_id: str) -> Job:
        """Return a job.

        Raises:
            UnknownIdError: the project has no such job.
        """
        with self._database.read() as connection:
            return read_record(Job, self._scope.row(connection, jobs, "fine-tuning job", job_id))

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 20,
        order: Order = Order.DESC,
        kind: JobKind | None = None,
        metadata: Mapping[str, str] | None = None,
        without_metadata: bool = False,
    ) -> Page[Job]:
        """Return a page of the project's jobs.

        Args:
            after: Id of the last job of the page before.
            metadata: Only jobs with all of these keys and values.
            without_metadata: Only jobs without any.

        Raises:
            UnknownIdError: ``after`` is no job of the project.
        """
        statement = self._scope.select(jobs)
        if kind is not None:
            statement = statement.where(jobs.c.kind == kind)
        if without_metadata:
            statement = statement.where(jobs.c.has_metadata.is_(False))
        for key, value in (metadata or {}).items():
            if not (is_storable_text(key) and is_storable_text(value)):
                return Page(items=[], has_more=False)
            having = self._scope.select(job_metadata, job_metadata.c.position)
            statement = statement.where(
                jobs.c.position.in_(having.where(job_metadata.c.key == key, job_metadata.c.value == value))
            )
        with self._database.read() as connection:
            since = None
            if after is not None:
                since = self._scope.row(connection, jobs, "fine-tuning job", after).position
            return read_page(
                connection,
                statement,
                by=jobs.c.position,
                after=since,
                limit=limit,
                order=order,
                record=Job,
            )

    def cancel(self, job_id: str, *, actor: str | None = None) -> Job:
        """End a job that has not ended. Its runner, if it has one, loses it at once.

        The audit log names ``actor``, as it does of :meth:`pause` and :meth:`resume`; None writes nothing there.

        Raises:
            UnknownIdError: the project has no such job.
            IllegalTransitionError: it has ended.
        """
        with self._database.write() as connection:
            return self._changed(connection, job_id, JobStatus.CANCELLED, "The job has been cancelled.", actor)

    def pause(self, job_id: str, *, actor: str | None = None) -> Job:
        """Pause a job: one that waits at once, one that runs when its runner has saved it (``pausing`` until then).

        Raises:
            UnknownIdError: the project has no such job.
            IllegalTransitionError: it is neither queued nor running.
        """
        with self._database.write() as connection:
            row = self._scope.row(connection, jobs, "fine-tuning job", job_id)
            if row.status in (JobStatus.RUNNING, JobStatus.PAUSING):
                wanted, said = JobStatus.PAUSING, "The job is being paused."
            else:
                wanted, said = JobStatus.PAUSED, "The job has been paused."
            if row.status is wanted:
                return read_record(Job, row)
            return self._changed(connection, job_id, wanted, said, actor, expected=row.status)

    def resume(self, job_id: str, *, actor: str | None = None) -> Job:
        """Let a paused job go on: it waits for a runner again, or runs on if it had not been paused yet.

        Raises:
            UnknownIdError: the project has no such job.
            IllegalTransitionError: it is not paused.
        """
        with self._database.write() as connection:
            row = self._scope.row(connection, jobs, "fine-tuning job", job_id)
            if row.status not in (JobStatus.PAUSED, JobStatus.PAUSING):
                raise IllegalTransitionError(job_id, status=row.status, wanted="resumed", allowed=_allowed(row.status))
            wanted = JobStatus.RUNNING if row.status is JobStatus.PAUSING else JobStatus.QUEUED
            return self._changed(connection, job_id, wanted, "The job has been resumed.", actor, expected=row.status)

    def _changed(
        self,
        connection: Connection,
        job_id: str,
        wanted: JobStatus,
        message: str,
        actor: str | None,
        *,
        expected: JobStatus | None = None,
    ) -> Job:
        now = self._database.now(connection)
        sources = sources_of(wanted) if expected is None else sources_of(wanted) & {expected}
        values: dict[str, Any] = {"status": wanted, "changed_at": now}
        if not may_become(wanted):
            values["finished_at"] = now
            # what its runner writes from now on is refused
            values |= {"lease_token": jobs.c.lease_token + 1, "lease_owner": None, "lease_expires_at": None}
        # the condition is part of the statement: two requests at once cannot both succeed
        statement = self._scope.update(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(sorted(sources)))
        if connection.execute(statement.values(**values)).rowcount == 0:
            row = self._scope.row(connection, jobs, "fine-tuning job", job_id)
            raise IllegalTransitionError(job_id, status=row.status, wanted=wanted, allowed=_allowed(row.status))
        add_events(connection, self._database, self._scope.source, job_id=job_id, events=[NewEvent(message=message)])
        if actor is not None:
            own, done = self._scope.project_id, f"job.{CLIENT_ACTIONS[wanted]}"
            record_action(connection, self._database, actor=actor, action=done, target=job_id, project_id=own)
        self._database.announce(connection, kind="job", id=job_id)
        return read_record(Job, self._scope.row(connection, jobs, "fine-tuning job", job_id))

    def events(
        self, job_id: str, *, after: str | None = None, limit: int = 20, order: Order = Order.DESC
    ) -> Page[JobEvent]:
        """Return a page of a job's events; ``after`` is the id of an event.

        Raises:
            UnknownIdError: the project has no such job, or the job no such event.
        """
        own = self._scope.select(job_events).where(job_events.c.job_id == job_id)

        def row_of(connection: Connection, event_id: str) -> Row[Any]:
            return self._scope.row(connection, job_events, "event", event_id)

        number = job_events.c.number
        return self._page_of(
            job_id, own, JobEvent, by=number, kind="event", row_of=row_of, after=after, limit=limit, order=order
        )

    def events_since(self, job_id: str, number: int, *, limit: int = 1000) -> Sequence[JobEvent]:
        """Return the events after the one of this number, the oldest first: for streams of events."""
        with self._database.read() as connection:
            self._scope.row(connection, jobs, "fine-tuning job", job_id)
            own = self._scope.select(job_events).where(job_events.c.job_id == job_id, job_events.c.number > number)
            rows = connection.execute(own.order_by(job_events.c.number).limit(limit)).all()
        return [read_record(JobEvent, row) for row in rows]

    def checkpoints(
        self, job_id: str, *, after: str | None = None, limit: int = 10, order: Order = Order.DESC
    ) -> Page[Checkpoint]:
        """Return a page of a job's checkpoints; ``after`` is the id of one.

        Raises:
            UnknownIdError: the project has no such job, or no such checkpoint.
        """
        own = self._scope.select(checkpoints).where(checkpoints.c.job_id == job_id, checkpoints.c.deleted_at.is_(None))

        def row_of(connection: Connection, checkpoint_id: str) -> Row[Any]:
            return self._scope.row(connection, checkpoints, "checkpoint", checkpoint_id)

        return self._page_of(
            job_id,
            own,
            Checkpoint,
            by=checkpoints.c.position,
            kind="checkpoint",
            row_of=row_of,
            after=after,
            limit=limit,
            order=order,
        )

    def _page_of(
        self,
        job_id: str,
        statement: Select[Any],
        record: type[_Record],
        *,
        by: Column[Any],
        kind: str,
        row_of: Callable[[Connection, str], Row[Any]],
        after: str | None,
        limit: int,
        order: Order,
    ) -> Page[_Record]:
        """Return a page of a job's rows of a table in the order of a column; ``row_of`` finds one by its id."""
        with self._database.read() as connection:
            self._scope.row(connection, jobs, "fine-tuning job", job_id)
            since = None
            if after is not None:
                row = row_of(connection, after)
                # a row of another job is unknown to this one
                if row.job_id != job_id:
                    raise UnknownIdError(kind, after)
                since = row._mapping[by]
            return read_page(connection, statement, by=by, after=since, limit=limit, order=order, record=record)


def _allowed(status: JobStatus) -> str:
    return ", ".join(sorted(may_become(status)))
