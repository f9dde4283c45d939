"""Jobs that are over, for those who remove what a node still has of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from cohort.store.database import Database
from cohort.store.tables import jobs, projects

__all__ = ["ended_jobs", "jobs_of_removed_projects"]


def ended_jobs(database: Database, job_ids: Sequence[str], *, seconds_ago: float) -> tuple[set[str], set[str]]:
    """Return which jobs ended ``seconds_ago`` or earlier, and which are known at all."""
    with database.read() as connection:
        now = database.now(connection)
        rows = connection.execute(select(jobs.c.id, jobs.c.finished_at).where(jobs.c.id.in_(job_ids))).all()
    over = {row.id for row in rows if row.finished_at is not None and row.finished_at <= now - seconds_ago}
    return over, {row.id for row in rows}


def jobs_of_removed_projects(database: Database, job_ids: Sequence[str], *, seconds_ago: float) -> set[str]:
    """Return which jobs are of projects that an administrator removed ``seconds_ago`` or earlier."""
    statement = select(jobs.c.id).join(projects, projects.c.id == jobs.c.project_id)
    with database.read() as connection:
        removed = projects.c.removed_at <= database.now(connection) - seconds_ago
        return set(connection.scalars(statement.where(jobs.c.id.in_(job_ids), removed)))
