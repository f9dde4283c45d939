"""A service's database with two tenants that used something, and its pages without models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from cohort.service.access.gate import CallerCache
from cohort.service.admin.pages import build_service_pages
from cohort.store.enums import KeyScope, UsageKind
from cohort.store.store import Store, open_store
from cohort.store.tenants.keys import TENANT_SCOPES
from cohort.store.tenants.tenants import Quotas

__all__ = ["TwoTenants", "pages_of", "two_tenants"]


@dataclass(frozen=True, kw_only=True)
class TwoTenants:
    """The store, and what is in it.

    Attributes:
        admin: The text of a key with the scope ``admin``, of the first project.
        member: That of one without, of the second.
        projects: Ids by name.
        keys: Ids of the two keys.
    """

    store: Store
    admin: str
    member: str
    projects: Mapping[str, str]
    keys: Mapping[str, str]


def two_tenants(folder: Path) -> TwoTenants:
    """Return ``acme/research``, which has used tokens today and has quotas, and ``zen/default``."""
    store = open_store(folder)
    acme = store.tenants.add_organisation("acme", actor="test")
    zen = store.tenants.add_organisation("zen", actor="test")
    quotas = Quotas(max_open_jobs=4, max_tokens_per_day=1_000_000)
    research = store.tenants.add_project(acme.id, "research", actor="test", weight=2.0, quotas=quotas)
    default = store.tenants.add_project(zen.id, "default", actor="test")
    admin = store.keys.create(research.id, actor="test", name="mine", scopes=frozenset(KeyScope))
    member = store.keys.create(default.id, actor="test", name="<img src=x onerror=alert(1)>", scopes=TENANT_SCOPES)
    store.project(research.id).usage.add({UsageKind.TRAINED_TOKENS: 250_000.0, UsageKind.GPU_SECONDS: 5400.0})
    store.project(default.id).usage.add({UsageKind.PROMPT_TOKENS: 1_000.0, UsageKind.REQUESTS: 3.0})
    return TwoTenants(
        store=store,
        admin=admin.text,
        member=member.text,
        projects={"research": research.id, "default": default.id},
        keys={"admin": admin.key.id, "member": member.key.id},
    )


def pages_of(
    store: Store, *, can_change: bool, nodes: Path | None = None, key_seconds: float = 0.0, poll_seconds: float = 0.05
) -> Starlette:
    """Return the pages below ``/dashboard``, as a service has them; a key is asked for again each time."""
    callers = CallerCache(store.keys.find, seconds=key_seconds)
    pages = build_service_pages(
        store,
        callers=callers,
        nodes=Path("no-nodes") if nodes is None else nodes,
        host="127.0.0.1",
        can_change=can_change,
        poll_seconds=poll_seconds,
        key_seconds=key_seconds,
    )
    return Starlette(routes=[Mount("/dashboard", pages)])
