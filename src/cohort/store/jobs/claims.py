"""Who runs a job: a runner claims it for a time, renews its claim, and writes only while the claim is its own.

A claim has a fencing token that grows with each claim of the job. Every write of a runner names its token: a runner
that was taken for dead and replaced cannot write any more, however late it comes back. A claim that has expired and
that no other runner took can be renewed, so that a database that was away for a while costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, func, insert, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from cohort.store.blobs.blob_rows import keep_blob, remove_blob_row
from cohort.store.database import Database
from cohort.store.enums import JobKind, JobStatus, UsageKind
from cohort.store.errors import IllegalTransitionError, LeaseLostError
from cohort.store.jobs.events import NewEvent, add_events
from cohort.store.jobs.transitions import HELD, WAITING, may_become
from cohort.store.random_names import RandomSource, new_id
from cohort.store.records import Job, read_record
from cohort.store.storable import finite
from cohort.store.tables import IS_OPEN, checkpoints, jobs, models
from cohort.store.tenants.usage import add_job_usage

__all__ = ["Claim", "Claims", "NewCheckpoint", "NewModel", "WaitingJobs"]

_CLAIMABLE = WAITING | HELD


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A runner's right to a job, until another one has it.

    Attributes:
        token: The fencing token.
    """

    job_id: str
    project_id: str
    owner: str
    token: int


@dataclass(frozen=True, kw_only=True)
class NewCheckpoint:
    """An adapter as it was after a step; the fields are those of :class:`~cohort.store.records.Checkpoint`."""

    step_number: int
    model: str
    metrics: Mapping[str, Any]
    blob: str | None


@dataclass(frozen=True, kw_only=True)
class NewModel:
    """A finished adapter; ``id`` is the name under which it is served."""

    id: str
    blob: str | None


@dataclass(frozen=True, kw_only=True)
class WaitingJobs:
    """How many jobs of a project wait for a runner, and since when the first of them does."""

    project_id: str
    base_model: str
    num_jobs: int
    oldest_job: str
    waiting_since: float


class Claims:
    """What runners do with jobs of all projects."""

    def __init__(self, database: Database, source: RandomSource) -> None:
        self._database = database
        self._source = source

    def waiting(self, *, statuses: Collection[JobStatus] = _CLAIMABLE) -> list[WaitingJobs]:
        """Return what could be claimed now, by project and base model: whose turn it is decides the caller."""
        with self._database.read() as connection:
            claimable = self._claimable(self._database.now(connection), statuses)
            counted = (
                select(
                    jobs.c.project_id,
                    jobs.c.base_model,
                    func.count().label("num_jobs"),
                    func.min(jobs.c.position).label("first"),
                )
                .where(claimable)
                .group_by(jobs.c.project_id, jobs.c.base_model)
                .subquery()
            )
            statement = select(counted, jobs.c.id, jobs.c.created_at).join(jobs, jobs.c.position == counted.c.first)
            rows = connection.execute(statement.order_by(counted.c.first)).all()
        return [
            WaitingJobs(
                project_id=row.project_id,
                base_model=row.base_model,
                num_jobs=row.num_jobs,
                oldest_job=row.id,
                waiting_since=row.created_at,
            )
            for row in rows
        ]

    def claim_next(
        self,
        owner: str,
        *,
        seconds: float,
        statuses: Collection[JobStatus] = _CLAIMABLE,
        project_id: str | None = None,
        base_model: str | None = None,
        kind: JobKind | None = None,
    ) -> tuple[Claim, Job] | None:
        """Claim the oldest job that waits, or whose runner was lost; None if there is none.

        The status stays as it is: the runner sees from it whether to validate files, to begin or to go on.

        Args:
            owner: The runner's name.
            seconds: How long the claim lasts unless it is renewed.
            statuses: Of the jobs to choose from.
            project_id: Only jobs of this project; ``base_model`` and ``kind`` likewise.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            wanted = [self._claimable(now, statuses)]
            for column, value in (
                (jobs.c.project_id, project_id),
                (jobs.c.base_model, base_model),
                (jobs.c.kind, kind),
            ):
                if value is not None:
                    wanted.append(column == value)
            chosen: Select[Any] = select(jobs.c.id).where(*wanted).order_by(jobs.c.position).limit(1)
            return self._claim(connection, chosen, owner, now=now, seconds=seconds)

    def claim(self, job_id: str, owner: str, *, seconds: float) -> tuple[Claim, Job] | None:
        """Claim this job; None if it does not wait, or another runner has it."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            chosen = select(jobs.c.id).where(jobs.c.id == job_id, self._claimable(now, _CLAIMABLE))
            return self._claim(connection, chosen, owner, now=now, seconds=seconds)

    def _claim(
        self, connection: Connection, chosen: Select[Any], owner: str, *, now: float, seconds: float
    ) -> tuple[Claim, Job] | None:
        # PostgreSQL: runners that ask at once get different rows, without waiting; SQLite: a writer is alone
        job_id = connection.scalar(chosen.with_for_update(skip_locked=True))
        if job_id is None:
            return None
        values = {"lease_owner": owner, "lease_token": jobs.c.lease_token + 1, "lease_expires_at": now + seconds}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values, changed_at=now))
        job = _read_job(connection, job_id)
        return Claim(job_id=job.id, project_id=job.project_id, owner=owner, token=job.lease_token), job

    @staticmethod
    def _claimable(now: float, statuses: Collection[JobStatus]) -> ColumnElement[bool]:
        expired = or_(jobs.c.lease_expires_at.is_(None), jobs.c.lease_expires_at <= now)
        # the index's own condition, without which it is not used
        return and_(IS_OPEN, jobs.c.status.in_(sorted(statuses)), expired)

    def renew(self, claim: Claim, *, seconds: float) -> Job:
        """Keep a job for ``seconds`` more, and return it: its status tells whether to pause.

        Raises:
            LeaseLostError: another runner has it, or it was cancelled.
        """
        with self._database.write() as connection:
            now = self._database.now(connection)
            self._write(connection, claim, lease_expires_at=now + seconds)
            return _read_job(connection, claim.job_id)

    def release(self, claim: Claim) -> None:
        """Give a job back without changing it, for another runner; nothing happens if the claim is lost already."""
        with self._database.write() as connection:
            own = self._own(claim)
            connection.execute(update(jobs).where(own).values(lease_owner=None, lease_expires_at=None))
            self._database.announce(connection, kind="job", id=claim.job_id)

    def update(
        self,
        claim: Claim,
        *,
        status: JobStatus | None = None,
        events: Iterable[NewEvent] = (),
        usage: Mapping[UsageKind, float] | None = None,
        checkpoint: NewCheckpoint | None = None,
        model: NewModel | None = None,
        **values: Any,
    ) -> Job:
        """Write what happened to a job, all of it or nothing.

        Args:
            claim: The runner's claim; it ends with a status in which a job has no runner.
            status: The next status.
            events: Events to append.
            usage: What the job has used since its beginning, in total: told twice, it counts once.
            checkpoint: A checkpoint to add. A second one of the same step is left out.
            model: The finished adapter, which becomes the job's ``fine_tuned_model``.
            values: Columns of the job: ``run_directory``, ``hyperparameters``, ``trained_tokens``,
                ``estimated_finish``, ``error``, ``result_files``, ``seed``.

        Raises:
            LeaseLostError: another runner has the job, or it was cancelled. Nothing was written.
            IllegalTransitionError: the job cannot become ``status``.
        """
        if unknown := values.keys() - _RUNNER_COLUMNS:
            raise TypeError(
                f"a runner does not write {', '.join(sorted(unknown))}; it writes {', '.join(_RUNNER_COLUMNS)}"
            )
        with self._database.write() as connection:
            now = self._database.now(connection)
            status_now = self._locked(connection, claim)
            if status is not None:
                values |= _status_values(claim, status_now, status, now)
            if checkpoint is not None:
                self._add_checkpoint(connection, claim, checkpoint, now)
            if model is not None:
                self._add_model(connection, claim, model, now)
                values["fine_tuned_model"] = model.id
            self._write(connection, claim, changed_at=now, **values)
            add_events(connection, self._database, self._source, job_id=claim.job_id, events=events)
            if usage:
                add_job_usage(connection, project_id=claim.project_id, job_id=claim.job_id, seconds=now, totals=usage)
            if status is not None:
                self._database.announce(connection, kind="job", id=claim.job_id)
            return _read_job(connection, claim.job_id)

    def _locked(self, connection: Connection, claim: Claim) -> JobStatus:
        """Return the status of a claimed job, which no other process changes until the transaction ends."""
        row = connection.execute(select(jobs.c.status).where(self._own(claim)).with_for_update()).one_or_none()
        if row is None:
            raise _lost(claim)
        status: JobStatus = row.status
        return status

    def _write(self, connection: Connection, claim: Claim, **values: Any) -> None:
        if connection.execute(update(jobs).where(self._own(claim)).values(**values)).rowcount == 0:
            raise _lost(claim)

    @staticmethod
    def _own(claim: Claim) -> ColumnElement[bool]:
        return and_(
            jobs.c.id == claim.job_id,
            jobs.c.project_id == claim.project_id,
            jobs.c.lease_token == claim.token,
            # released, and not taken by another runner: the token alone would still be right
            jobs.c.lease_owner == claim.owner,
        )

    def _add_checkpoint(self, connection: Connection, claim: Claim, new: NewCheckpoint, now: float) -> None:
        known = connection.execute(
            select(checkpoints.c.blob).where(
                checkpoints.c.job_id == claim.job_id, checkpoints.c.step_number == new.step_number
            )
        ).one_or_none()
        # a runner that goes on after a kill comes by the same steps again
        if known is not None and known.blob != new.blob:
            remove_blob_row(connection, new.blob, now=now)
        if known is None:
            keep_blob(connection, new.blob, now=now)
            connection.execute(
                insert(checkpoints).values(
                    id=new_id(self._source, "ftckpt_"),
                    project_id=claim.project_id,
                    job_id=claim.job_id,
                    step_number=new.step_number,
                    model=new.model,
                    metrics=finite(new.metrics),
                    blob=new.blob,
                    created_at=now,
                )
            )

    def _add_model(self, connection: Connection, claim: Claim, new: NewModel, now: float) -> None:
        # told twice, because the first answer was lost on its way
        if connection.execute(
            select(models.c.id).where(models.c.id == new.id, models.c.job_id == claim.job_id)
        ).first():
            return
        keep_blob(connection, new.blob, now=now)
        base_model = connection.scalar(select(jobs.c.base_model).where(jobs.c.id == claim.job_id))
        connection.execute(
            insert(models).values(
                id=new.id,
                project_id=claim.project_id,
                job_id=claim.job_id,
                base_model=base_model,
                blob=new.blob,
                created_at=now,
            )
        )


_RUNNER_COLUMNS = (
    "error",
    "estimated_finish",
    "hyperparameters",
    "result_files",
    "run_directory",
    "seed",
    "trained_tokens",
)


def _lost(claim: Claim) -> LeaseLostError:
    return LeaseLostError(
        f"runner {claim.owner} has no claim {claim.token} to job {claim.job_id} any more: another runner has it, or it "
        "has ended; stop working on it"
    )


def _read_job(connection: Connection, job_id: str) -> Job:
    return read_record(Job, connection.execute(select(jobs).where(jobs.c.id == job_id)).one())


def _status_values(claim: Claim, status: JobStatus, wanted: JobStatus, now: float) -> dict[str, Any]:
    """Return what changes in a job's row when its runner sets its status."""
    if wanted is status:
        return {}
    if wanted not in may_become(status):
        allowed = ", ".join(sorted(may_become(status)))
        raise IllegalTransitionError(claim.job_id, status=status, wanted=wanted, allowed=allowed)
    values: dict[str, Any] = {"status": wanted}
    if wanted is JobStatus.RUNNING:
        # a job that goes on began when it first did
        values["started_at"] = func.coalesce(jobs.c.started_at, now)
    if not may_become(wanted):
        values |= {"finished_at": now, "estimated_finish": None}
    if wanted not in HELD:
        values |= {"lease_owner": None, "lease_expires_at": None}
    return values
