"""Usage: what each project used on each day, and whether a quota leaves room for more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite

from cohort.core.errors import InputError, Problem
from cohort.store.database import Database
from cohort.store.enums import BlobState, UsageKind
from cohort.store.errors import QuotaExceededError, UnknownIdError
from cohort.store.records import Project, UsageRow, read_record
from cohort.store.tables import IS_OPEN, blobs, job_usage, jobs, projects, usage

__all__ = [
    "TOKEN_KINDS",
    "add_job_usage",
    "add_usage",
    "check_day",
    "check_open_jobs",
    "check_stored_bytes",
    "check_tokens",
    "day_of",
    "export_usage",
    "known_project",
    "locked_project",
    "stored_bytes",
    "tokens_of_day",
]

TOKEN_KINDS = (
    UsageKind.PROMPT_TOKENS,
    UsageKind.COMPLETION_TOKENS,
    UsageKind.TRAINED_TOKENS,
    UsageKind.EVALUATED_TOKENS,
)
"""The kinds of usage that count as tokens of a day."""


def day_of(seconds: float) -> str:
    """Return the day in UTC as ``2026-10-31``."""
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d")


def check_day(day: str | None, *, where: str) -> None:
    """Raise :class:`InputError` if a text is no day such as ``2026-10-31``."""
    try:
        is_day = day is None or datetime.strptime(day, "%Y-%m-%d").strftime("%Y-%m-%d") == day
    except ValueError:
        is_day = False
    if not is_day:
        problem = Problem(where=where, found=repr(day), allowed="a day such as 2026-10-31", hint="Give one.")
        raise InputError(problem)


def _add(connection: Connection, table: Table, *, keyed_by: tuple[str, ...], values: Mapping[str, object]) -> None:
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(table).values(**values)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(keyed_by), set_={"amount": table.c.amount + statement.excluded.amount}
        )
    )


def add_usage(connection: Connection, *, project_id: str, seconds: float, amounts: Mapping[UsageKind, float]) -> None:
    """Add to what a project used on the day of ``seconds``."""
    # in one order, so that two writers never wait for each other in a circle
    for kind in sorted(amounts):
        if amounts[kind]:
            _add(
                connection,
                usage,
                keyed_by=("project_id", "day", "kind"),
                values={"project_id": project_id, "day": day_of(seconds), "kind": kind, "amount": amounts[kind]},
            )


def add_job_usage(
    connection: Connection, *, project_id: str, job_id: str, seconds: float, totals: Mapping[UsageKind, float]
) -> None:
    """Bring what a job used up to ``totals`` since its beginning: told twice, it counts once."""
    known = {
        row.kind: row.amount
        for row in connection.execute(select(job_usage.c.kind, job_usage.c.amount).where(job_usage.c.job_id == job_id))
    }
    more = {kind: total - known.get(kind, 0.0) for kind, total in totals.items() if total > known.get(kind, 0.0)}
    for kind in sorted(more):
        _add(
            connection,
            job_usage,
            keyed_by=("job_id", "kind"),
            values={"job_id": job_id, "project_id": project_id, "kind": kind, "amount": more[kind]},
        )
    add_usage(connection, project_id=project_id, seconds=seconds, amounts=more)


def known_project(connection: Connection, project_id: str) -> Project:
    """Return a project, removed or not."""
    return read_record(Project, connection.execute(select(projects).where(projects.c.id == project_id)).one())


def locked_project(connection: Connection, project_id: str) -> Project:
    """Return a project whose quotas no other transaction checks until this one ends.

    Raises:
        UnknownIdError: it was removed.
    """
    # on SQLite a writer is alone anyway
    statement = select(projects).where(projects.c.id == project_id, projects.c.removed_at.is_(None))
    row = connection.execute(statement.with_for_update(key_share=True)).first()
    if row is None:
        raise UnknownIdError("project", project_id)
    return read_record(Project, row)


def check_open_jobs(connection: Connection, project: Project) -> None:
    """Raise :class:`QuotaExceededError` if a project may open no further job."""
    if project.max_open_jobs is None:
        return
    statement = select(func.count()).where(jobs.c.project_id == project.id, IS_OPEN)
    used = int(connection.scalar(statement) or 0)
    if used >= project.max_open_jobs:
        raise QuotaExceededError("max_open_jobs", limit=project.max_open_jobs, used=used, wanted=1)


def stored_bytes(connection: Connection, project_id: str) -> int:
    """Return the bytes of what a project keeps."""
    statement = select(func.coalesce(func.sum(blobs.c.bytes), 0))
    own = statement.where(blobs.c.project_id == project_id, blobs.c.state == BlobState.KEPT)
    return int(connection.scalar(own) or 0)


def check_stored_bytes(connection: Connection, project: Project, *, wanted: int) -> None:
    """Raise :class:`QuotaExceededError` if a project may not store these bytes as well."""
    if project.max_stored_bytes is None:
        return
    used = stored_bytes(connection, project.id)
    if used + wanted > project.max_stored_bytes:
        raise QuotaExceededError("max_stored_bytes", limit=project.max_stored_bytes, used=used, wanted=wanted)


def check_tokens(connection: Connection, project: Project, *, seconds: float, wanted: int) -> None:
    """Raise :class:`QuotaExceededError` if a project may not use these tokens as well on the day of ``seconds``."""
    if project.max_tokens_per_day is None:
        return
    used = tokens_of_day(connection, project.id, day=day_of(seconds))
    if used + wanted > project.max_tokens_per_day:
        raise QuotaExceededError("max_tokens_per_day", limit=project.max_tokens_per_day, used=used, wanted=wanted)


def tokens_of_day(connection: Connection, project_id: str, *, day: str) -> int:
    """Return the tokens of all kinds that a project used on a day."""
    statement = select(func.coalesce(func.sum(usage.c.amount), 0)).where(
        usage.c.project_id == project_id, usage.c.day == day, usage.c.kind.in_(TOKEN_KINDS)
    )
    return int(connection.scalar(statement) or 0)


def export_usage(
    database: Database, *, first_day: str | None = None, last_day: str | None = None
) -> Iterator[UsageRow]:
    """Yield the usage of all projects, by project, day and kind; for administrators."""
    statement = select(usage).order_by(usage.c.project_id, usage.c.day, usage.c.kind)
    if first_day is not None:
        statement = statement.where(usage.c.day >= first_day)
    if last_day is not None:
        statement = statement.where(usage.c.day <= last_day)
    with database.read() as connection:
        rows = connection.execute(statement).all()
    for row in rows:
        yield read_record(UsageRow, row)
