"""Events of a job: numbered from 1 without gaps, in the order in which they were committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from cohort.store.database import Database
from cohort.store.random_names import RandomSource, new_id
from cohort.store.storable import finite
from cohort.store.tables import job_events, jobs
from cohort.store.words import EventLevel

__all__ = ["NewEvent", "add_events"]


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event that is to be written.

    Attributes:
        type: ``message``, or ``metrics`` with numbers in ``data``.
    """

    message: str
    level: EventLevel = EventLevel.INFO
    type: str = "message"
    data: Mapping[str, Any] | None = None


def add_events(
    connection: Connection, database: Database, source: RandomSource, *, job_id: str, events: Iterable[NewEvent]
) -> None:
    """Append events to a job, within a transaction that may change it."""
    added = list(events)
    if not added:
        return
    # the job's row is locked by this until the transaction ends: numbers come in the order of commits
    counted = update(jobs).where(jobs.c.id == job_id).values(num_events=jobs.c.num_events + len(added))
    connection.execute(counted)
    row = connection.execute(select(jobs.c.num_events, jobs.c.project_id).where(jobs.c.id == job_id)).one()
    now = database.now(connection)
    first = row.num_events - len(added) + 1
    rows = [
        {
            "job_id": job_id,
            "number": number,
            "id": new_id(source, "ftevent-"),
            "project_id": row.project_id,
            "created_at": now,
            "level": event.level,
            "type": event.type,
            "message": event.message.replace("\0", ""),
            "data": finite(event.data),
        }
        for number, event in enumerate(added, start=first)
    ]
    connection.execute(insert(job_events), rows)
    database.announce(connection, kind="event", id=job_id)
