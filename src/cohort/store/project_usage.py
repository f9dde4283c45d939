"""What one project used, and what its quotas leave."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.store.enums import UsageKind
from cohort.store.jobs.transitions import ENDED
from cohort.store.records import UsageRow, read_record
from cohort.store.scope import Scope
from cohort.store.tables import jobs, usage
from cohort.store.tenants.usage import add_job_usage, add_usage, check_tokens, known_project, stored_bytes

__all__ = ["ProjectUsage"]


class ProjectUsage:
    """What one project used."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._database = scope.database

    def add(self, amounts: Mapping[UsageKind, float]) -> None:
        """Add to today's usage."""
        with self._database.write() as connection:
            now = self._database.now(connection)
            add_usage(connection, project_id=self._scope.project_id, seconds=now, amounts=amounts)

    def settle_job(self, job_id: str, totals: Mapping[UsageKind, float]) -> None:
        """Bring a job that has ended up to ``totals``: one that is cancelled is taken from its runner while it trains.

        Nothing is written for a job that has not ended, of which its runner tells; told twice, it counts once.

        Raises:
            UnknownIdError: the project has no such job.
        """
        with self._database.write() as connection:
            row = self._scope.row(connection, jobs, "fine-tuning job", job_id)
            if row.status in ENDED:
                own, now = self._scope.project_id, self._database.now(connection)
                add_job_usage(connection, project_id=own, job_id=job_id, seconds=now, totals=totals)

    def check_tokens(self, wanted: int = 1) -> None:
        """Raise :class:`QuotaExceededError` if today's quota has no room for ``wanted`` tokens."""
        with self._database.read() as connection:
            project = known_project(connection, self._scope.project_id)
            check_tokens(connection, project, seconds=self._database.now(connection), wanted=wanted)

    def stored_bytes(self) -> int:
        with self._database.read() as connection:
            return stored_bytes(connection, self._scope.project_id)

    def by_day(self, *, first_day: str | None = None, last_day: str | None = None) -> list[UsageRow]:
        """Return the rows of the days from ``first_day`` to ``last_day``, both inclusive (``2026-10-31``)."""
        statement = self._scope.select(usage)
        if first_day is not None:
            statement = statement.where(usage.c.day >= first_day)
        if last_day is not None:
            statement = statement.where(usage.c.day <= last_day)
        with self._database.read() as connection:
            rows = connection.execute(statement.order_by(usage.c.day, usage.c.kind)).all()
        return [read_record(UsageRow, row) for row in rows]
