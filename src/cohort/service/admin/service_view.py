"""A service as its page shows it: every tenant with what it uses, one tenant with its keys, what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cohort.service.dashboard.plain_json import plain, rounded
from cohort.store.errors import UnknownIdError
from cohort.store.records import AuditEntry, Key, Organisation, Project
from cohort.store.store import Store
from cohort.store.tenants.audit import list_audit
from cohort.store.tenants.numbers import TenantNumbers, read_tenant_numbers

__all__ = ["project_view", "service_view"]

_MOST_AUDIT = 50


def service_view(store: Store) -> dict[str, Any]:
    """Return what the page shows of all tenants: sizes in bytes, times in seconds since 1970."""
    numbers = read_tenant_numbers(store.database)
    owners = {organisation.id: organisation for organisation in store.tenants.organisations()}
    projects = [
        _row(project, owners[project.organisation_id], numbers)
        for project in store.tenants.projects()
        if project.organisation_id in owners
    ]
    waiting = store.claims.waiting()
    found = {
        "now": numbers.now,
        "first_day": numbers.first_day,
        "organisations": sorted(owner.name for owner in owners.values()),
        "projects": projects,
        "num_waiting": sum(entry.num_jobs for entry in waiting),
        "by_day": [{"day": day, **kinds} for day, kinds in numbers.by_day.items()],
    }
    return dict(plain(found))


def project_view(store: Store, project_id: str) -> dict[str, Any]:
    """Return what the page shows of one tenant.

    Raises:
        UnknownIdError: there is none of this id.
    """
    project = store.tenants.project(project_id)
    numbers = read_tenant_numbers(store.database)
    owner = next((own for own in store.tenants.organisations() if own.id == project.organisation_id), None)
    if owner is None:
        raise UnknownIdError("project", project_id)
    rows = store.project(project.id).usage.by_day(first_day=numbers.first_day)
    by_day: dict[str, dict[str, float]] = {}
    for row in rows:
        by_day.setdefault(row.day, {})[str(row.kind)] = row.amount
    found = {
        "now": numbers.now,
        "project": _row(project, owner, numbers),
        "keys": [_key(key, now=numbers.now) for key in reversed(store.keys.list(project.id))],
        "by_day": [{"day": day, **kinds} for day, kinds in by_day.items()],
        "audit": [
            _entry(entry) for entry in list_audit(store.database, project_id=project.id, limit=_MOST_AUDIT).items
        ],
    }
    return dict(plain(found))


def _row(project: Project, owner: Organisation, numbers: TenantNumbers) -> dict[str, Any]:
    used: Mapping[str, float] = numbers.used.get(project.id, {})
    return {
        **asdict(project),
        "organisation": owner.name,
        "open_jobs": numbers.open_jobs.get(project.id, 0),
        "stored_bytes": numbers.stored_bytes.get(project.id, 0),
        "tokens_today": numbers.tokens_today.get(project.id, 0),
        "used": {kind: rounded(amount, 9) for kind, amount in used.items()},
    }


def _key(key: Key, *, now: float) -> dict[str, Any]:
    is_over = key.expires_at is not None and key.expires_at <= now
    state = "revoked" if key.revoked_at is not None else "expired" if is_over else "valid"
    return {**asdict(key), "scopes": sorted(key.scopes), "state": state}


def _entry(entry: AuditEntry) -> dict[str, Any]:
    return {**asdict(entry), "details": dict(entry.details or {})}
