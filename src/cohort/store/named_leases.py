"""Leases on work that one process does for all, such as housekeeping. Jobs have claims of their own."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from cohort.store.database import Database
from cohort.store.errors import LeaseLostError
from cohort.store.tables import leases

__all__ = ["NamedLease", "check_lease", "end_lease", "take_lease"]


@dataclass(frozen=True, kw_only=True)
class NamedLease:
    """The right to do a work until another process takes it over.

    Attributes:
        token: The fencing token, which grows with each taking.
        done_at: When the work was last done; None if never.
    """

    name: str
    owner: str
    token: int
    done_at: float | None


def take_lease(
    database: Database, name: str, owner: str, *, seconds: float, not_within_seconds: float = 0.0
) -> NamedLease | None:
    """Take a lease for ``seconds``; None if another owner has it, or the work was done shortly before.

    Args:
        not_within_seconds: The work is not to be done so soon after the last time.
    """
    try:
        with database.write() as connection:
            now = database.now(connection)
            row = connection.execute(select(leases).where(leases.c.name == name).with_for_update()).one_or_none()
            if row is None:
                connection.execute(insert(leases).values(name=name, owner=owner, token=1, expires_at=now + seconds))
                return NamedLease(name=name, owner=owner, token=1, done_at=None)
            if row.owner not in (None, owner) and row.expires_at > now:
                return None
            if row.done_at is not None and now - row.done_at < not_within_seconds:
                return None
            token = row.token + 1
            taken = update(leases).where(leases.c.name == name)
            connection.execute(taken.values(owner=owner, token=token, expires_at=now + seconds))
            return NamedLease(name=name, owner=owner, token=token, done_at=row.done_at)
    except IntegrityError:
        # two processes were the first at once
        return None


def check_lease(connection: Connection, lease: NamedLease) -> None:
    """Lock a lease until the transaction ends.

    Raises:
        LeaseLostError: another process has taken it; what this one was about to write is not written.
    """
    statement = select(leases.c.token).where(leases.c.name == lease.name).with_for_update()
    if connection.scalar(statement) != lease.token:
        raise LeaseLostError(f"{lease.owner} has no lease {lease.name} any more: another process took it over")


def end_lease(connection: Connection, lease: NamedLease, *, done_at: float) -> None:
    """Say in the transaction of the work that it is done, and give the lease back."""
    check_lease(connection, lease)
    ended = update(leases).where(leases.c.name == lease.name)
    connection.execute(ended.values(owner=None, expires_at=done_at, done_at=done_at))
