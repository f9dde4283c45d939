"""Lists in pages: a page begins after an id, so that it costs the same however far down the list it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, Connection, Select

from cohort.store.records import read_record

__all__ = ["Order", "Page", "read_page"]

_Record = TypeVar("_Record", covariant=True)
_Made = TypeVar("_Made")


class Order(StrEnum):
    """Oldest or newest first."""

    ASC = "asc"
    DESC = "desc"


@dataclass(frozen=True, kw_only=True)
class Page(Generic[_Record]):
    """Part of a list.

    Attributes:
        items: In the order asked for.
        has_more: Whether another page follows.
    """

    items: Sequence[_Record]
    has_more: bool


def read_page(
    connection: Connection,
    statement: Select[Any],
    *,
    by: Column[Any],
    after: int | None,
    limit: int,
    order: Order,
    record: type[_Made],
) -> Page[_Made]:
    """Return ``limit`` rows of ``statement`` as records, from behind the row whose ``by`` is ``after`` on."""
    if after is not None:
        statement = statement.where(by > after if order is Order.ASC else by < after)
    ordered = statement.order_by(by.asc() if order is Order.ASC else by.desc())
    # one more than asked for says whether there is more
    rows = connection.execute(ordered.limit(limit + 1)).all()
    return Page(items=[read_record(record, row) for row in rows[:limit]], has_more=len(rows) > limit)
