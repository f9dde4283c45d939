"""How long what belongs to an ended job is kept. Models and files stay until their owner deletes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists, select, update
from sqlalchemy.sql.elements import ColumnElement

from cohort.store.blobs.blob_rows import remove_blob_row
from cohort.store.database import Database
from cohort.store.tables import checkpoints, job_events, job_metadata, job_usage, jobs, models

__all__ = ["Retention", "forget_ended"]

_JOBS_AT_ONCE = 200
# what is left waits for the next time: one call ends soon
_MOST_TRANSACTIONS = 50


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Seconds from the end of a job; None: for ever.

    Attributes:
        event_seconds: Its events.
        job_seconds: The job, with its events and checkpoints. Its day's usage stays in the project's.
        run_seconds: Its run directory on the node that trained it: reports, trials and their adapters.
    """

    event_seconds: float | None = None
    job_seconds: float | None = None
    run_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("event_seconds", "job_seconds", "run_seconds"):
            if (seconds := getattr(self, name)) is not None and not seconds > 0:
                raise ValueError(f"{name} must be above 0, or None for ever; got {seconds}")


def forget_ended(database: Database, retention: Retention) -> int:
    """Remove events and jobs whose time is over, the oldest first, and return how many jobs that were."""
    if retention.event_seconds is not None:
        has_events = exists().where(job_events.c.job_id == jobs.c.id)
        _in_batches(database, _forget_events, seconds=retention.event_seconds, only=has_events)
    if retention.job_seconds is None:
        return 0
    return _in_batches(database, _forget_jobs, seconds=retention.job_seconds)


def _in_batches(
    database: Database,
    forget: Callable[[Connection, Sequence[str], float], None],
    *,
    seconds: float,
    only: ColumnElement[bool] | None = None,
) -> int:
    count = 0
    for _ in range(_MOST_TRANSACTIONS):
        with database.write() as connection:
            now = database.now(connection)
            # only ended jobs have an end
            ended = select(jobs.c.id).where(jobs.c.finished_at <= now - seconds)
            if only is not None:
                ended = ended.where(only)
            ids = list(connection.scalars(ended.order_by(jobs.c.position).limit(_JOBS_AT_ONCE)))
            if ids:
                forget(connection, ids, now)
        count += len(ids)
        if len(ids) < _JOBS_AT_ONCE:
            break
    return count


def _forget_events(connection: Connection, ids: Sequence[str], now: float) -> None:
    del now
    connection.execute(delete(job_events).where(job_events.c.job_id.in_(ids)))


def _forget_jobs(connection: Connection, ids: Sequence[str], now: float) -> None:
    kept = select(checkpoints.c.blob).where(checkpoints.c.job_id.in_(ids), checkpoints.c.deleted_at.is_(None))
    for blob in list(connection.scalars(kept)):
        remove_blob_row(connection, blob, now=now)
    # a model outlives the job that made it
    connection.execute(update(models).where(models.c.job_id.in_(ids)).values(job_id=None))
    for table in (checkpoints, job_events, job_metadata, job_usage):
        connection.execute(delete(table).where(table.c.job_id.in_(ids)))
    connection.execute(delete(jobs).where(jobs.c.id.in_(ids)))
