"""What all tenants have and use at a moment, in a few statements however many they are: for administrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from cohort.store.database import Database
from cohort.store.enums import BlobState, UsageKind
from cohort.store.tables import IS_OPEN, blobs, jobs, usage
from cohort.store.tenants.usage import TOKEN_KINDS, day_of

__all__ = ["TenantNumbers", "read_tenant_numbers"]

_SECONDS_OF_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class TenantNumbers:
    """What all tenants have and use.

    Attributes:
        now: The database's clock, in seconds since 1970.
        first_day: The first of the days that are added up, in UTC; the last is today.
        open_jobs: Jobs that have not ended, by project id, as the next three.
        stored_bytes: What is kept.
        tokens_today: Of all kinds, on this day in UTC.
        used: Usage since the first day, by kind.
        by_day: Usage of all projects together, by day and kind.
    """

    now: float
    first_day: str
    open_jobs: Mapping[str, int]
    stored_bytes: Mapping[str, int]
    tokens_today: Mapping[str, int]
    used: Mapping[str, Mapping[str, float]]
    by_day: Mapping[str, Mapping[str, float]]


def read_tenant_numbers(database: Database, *, num_days: int = 30) -> TenantNumbers:
    """Read the numbers of the last ``num_days`` days, today included."""
    with database.read() as connection:
        now = database.now(connection)
        first_day, today = day_of(now - (num_days - 1) * _SECONDS_OF_DAY), day_of(now)
        recent = usage.c.day >= first_day
        total = func.sum(usage.c.amount)
        tokens = select(usage.c.project_id, total).where(usage.c.day == today, usage.c.kind.in_(TOKEN_KINDS))
        stored = select(blobs.c.project_id, func.sum(blobs.c.bytes)).where(blobs.c.state == BlobState.KEPT)
        return TenantNumbers(
            now=now,
            first_day=first_day,
            open_jobs=_counts(connection, select(jobs.c.project_id, func.count()).where(IS_OPEN), jobs.c.project_id),
            stored_bytes=_counts(connection, stored, blobs.c.project_id),
            tokens_today=_counts(connection, tokens, usage.c.project_id),
            used=_by_kind(connection, usage.c.project_id, recent),
            by_day=_by_kind(connection, usage.c.day, recent),
        )


def _counts(connection: Connection, statement: Select[Any], by: Any) -> dict[str, int]:
    return {str(key): int(count or 0) for key, count in connection.execute(statement.group_by(by))}


def _by_kind(connection: Connection, by: Any, recent: Any) -> dict[str, dict[str, float]]:
    statement = select(by, usage.c.kind, func.sum(usage.c.amount)).where(recent).group_by(by, usage.c.kind)
    found: dict[str, dict[str, float]] = {}
    for key, kind, amount in connection.execute(statement.order_by(by, usage.c.kind)):
        found.setdefault(str(key), {})[str(UsageKind(kind))] = float(amount or 0.0)
    return found
