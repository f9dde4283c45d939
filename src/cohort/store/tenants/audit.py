"""The audit log: what administrators did, written in the transaction that did it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from cohort.store.database import Database
from cohort.store.pages import Order, Page, read_page
from cohort.store.records import AuditEntry
from cohort.store.tables import audit_entries

__all__ = ["list_audit", "record_action"]


def record_action(
    connection: Connection,
    database: Database,
    *,
    actor: str,
    action: str,
    target: str,
    project_id: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry to the audit log; secrets are no details."""
    connection.execute(
        insert(audit_entries).values(
            at=database.now(connection),
            actor=actor,
            action=action,
            project_id=project_id,
            target=target,
            details=dict(details or {}),
        )
    )


def list_audit(
    database: Database,
    *,
    project_id: str | None = None,
    after: int | None = None,
    limit: int = 100,
    order: Order = Order.DESC,
) -> Page[AuditEntry]:
    """Return a page of the log, of one project or of all; ``after`` is a position."""
    statement = select(audit_entries)
    if project_id is not None:
        statement = statement.where(audit_entries.c.project_id == project_id)
    with database.read() as connection:
        return read_page(
            connection,
            statement,
            by=audit_entries.c.position,
            after=after,
            limit=limit,
            order=order,
            record=AuditEntry,
        )
