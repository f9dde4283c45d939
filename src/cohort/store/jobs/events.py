"""Events of a job: numbered from 1 without gaps, in the order in which they were committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from cohort.store.database import Database
from cohort.store.enums import EventLevel
from cohort.store.random_names import RandomSource, derived_id, new_id
from cohort.store.storable import finite
from cohort.store.tables import job_events, jobs

__all__ = ["NewEvent", "add_events"]

_PREFIX = "ftevent-"
# SQLite allows 32,766 parameters in a statement
_IDS_ASKED_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """An event that is to be written.

    Attributes:
        type: ``message``, or ``metrics`` with numbers in ``data``.
        key: What the event is about, among those of its job, where a runner that was killed may write it again. Its id
            follows from the key, and a repetition is left out.
    """

    message: str
    level: EventLevel = EventLevel.INFO
    type: str = "message"
    data: Mapping[str, Any] | None = None
    key: str | None = None


def add_events(
    connection: Connection, database: Database, source: RandomSource, *, job_id: str, events: Iterable[NewEvent]
) -> None:
    """Append events to a job, within a transaction that may change it."""
    added = _not_known(connection, job_id, events)
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
            "id": new_id(source, _PREFIX) if event.key is None else _id_of(job_id, event.key),
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


def _id_of(job_id: str, key: str) -> str:
    return derived_id(_PREFIX, job_id, key)


def _not_known(connection: Connection, job_id: str, events: Iterable[NewEvent]) -> list[NewEvent]:
    """Return the events without those whose key was written before, or comes twice."""
    told, known, new = list(events), set[str](), list[NewEvent]()
    ids = [_id_of(job_id, event.key) for event in told if event.key is not None]
    for first in range(0, len(ids), _IDS_ASKED_AT_ONCE):
        asked = ids[first : first + _IDS_ASKED_AT_ONCE]
        known.update(connection.scalars(select(job_events.c.id).where(job_events.c.id.in_(asked))))
    for event in told:
        if event.key is not None:
            if (own := _id_of(job_id, event.key)) in known:
                continue
            known.add(own)
        new.append(event)
    return new
