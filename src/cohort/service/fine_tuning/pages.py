"""Lists in OpenAI's form: which part is asked for, and the body that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.service.access.refusals import ServiceError

__all__ = ["PageAsked", "list_body", "metadata_filter", "page_asked"]


@dataclass(frozen=True, kw_only=True)
class PageAsked:
    """Which part of a list.

    Attributes:
        after: The last id of the part before; None: from the beginning.
        limit: Most entries.
        is_ascending: Oldest first.
    """

    after: str | None
    limit: int
    is_ascending: bool = False


def page_asked(query: Mapping[str, str], *, default: int, most: int, has_order: bool = False) -> PageAsked:
    """Read ``after``, ``limit`` and, where there is one, ``order`` of a query.

    Raises:
        ServiceError: one of them is wrong.
    """
    written = query.get("limit")
    limit = default
    if written is not None:
        limit = int(written) if written.isascii() and written.isdigit() and len(written) < 10 else 0
        if not 1 <= limit <= most:
            raise ServiceError(f"limit is {written[:30]!r}; write a whole number from 1 to {most}.", param="limit")
    order = query.get("order", "desc") if has_order else "desc"
    if order not in ("asc", "desc"):
        raise ServiceError(f"order is {order[:30]!r}; write asc or desc.", param="order")
    return PageAsked(after=query.get("after") or None, limit=limit, is_ascending=order == "asc")


def metadata_filter(query: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the metadata that jobs must have; empty asks for nothing, None for jobs without any."""
    if query.get("metadata") == "null":
        return None
    return {
        name[len("metadata[") : -1]: value
        for name, value in query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }


def list_body(items: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    ids = [item["id"] for item in items]
    return {
        "object": "list",
        "data": list(items),
        "has_more": has_more,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
