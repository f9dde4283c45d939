"""Projects, keys and audit entries as tables and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cohort.cli.tables.fitted_table import TableColumn, fitted_table
from cohort.cli.tables.trial_table import left_out_text, wide_console
from cohort.core.units import format_bytes, format_count

if TYPE_CHECKING:
    from cohort.store.records import AuditEntry, Key, Organisation, Project

__all__ = ["key_json", "print_audit", "print_keys", "print_projects", "project_json"]


def _print_table(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> None:
    console = wide_console(200)
    table, left_out = fitted_table(columns, rows, width=console.width)
    # names and ids are copied: what is too wide is broken by the terminal, and nothing is cut
    console.print(table, soft_wrap=True)
    if left_out:
        print(f"hidden: {left_out_text(left_out, elsewhere='--json has all')}", file=sys.stderr)


def _column(heading: str, *, leave_out: int = 0, is_number: bool = False) -> TableColumn:
    return TableColumn(heading=heading, justify="right" if is_number else "left", leave_out=leave_out)


_PROJECT_COLUMNS = (
    _column("project"),
    _column("weight", is_number=True),
    _column("stored bytes", is_number=True, leave_out=1),
    _column("open jobs", is_number=True, leave_out=2),
    _column("tokens/day", is_number=True, leave_out=3),
    _column("requests/min", is_number=True, leave_out=4),
    _column("id"),
)
_KEY_COLUMNS = (
    _column("key"),
    _column("project", leave_out=5),
    _column("name", leave_out=4),
    _column("scopes", leave_out=1),
    _column("state"),
    _column("expires", leave_out=2),
    _column("last use", leave_out=3),
    _column("id"),
)
_AUDIT_COLUMNS = (
    _column("time (UTC)"),
    _column("actor", leave_out=2),
    _column("action"),
    _column("target"),
    _column("details", leave_out=1),
)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M")


def project_json(project: Project, *, organisation: Organisation) -> Mapping[str, object]:
    return {**asdict(project), "organisation": organisation.name}


def print_projects(projects: Sequence[Project], organisations: Sequence[Organisation], *, as_json: bool) -> None:
    """Print projects with their shares and quotas."""
    by_id = {organisation.id: organisation for organisation in organisations}
    shown = [(project, by_id[project.organisation_id]) for project in projects if project.organisation_id in by_id]
    if as_json:
        print(json.dumps({"projects": [project_json(project, organisation=owner) for project, owner in shown]}))
        return
    if not shown:
        print("no projects; add one with `cohort tenants add ORGANISATION`")
        return

    def bound(value: int | None, form: Callable[[int], str] = format_count) -> str:
        return "-" if value is None else form(value)

    rows = [
        (
            f"{owner.name}/{project.name}",
            f"{project.weight:g}",
            bound(project.max_stored_bytes, format_bytes),
            bound(project.max_open_jobs),
            bound(project.max_tokens_per_day),
            bound(project.max_requests_per_minute),
            project.id,
        )
        for project, owner in shown
    ]
    _print_table(_PROJECT_COLUMNS, rows)


def key_json(key: Key) -> Mapping[str, object]:
    return {**asdict(key), "scopes": sorted(key.scopes)}


def print_keys(keys: Sequence[Key], names: Mapping[str, str], *, now: float, as_json: bool) -> None:
    """Print keys without their secrets; ``names`` says by id which project it is."""
    if as_json:
        print(json.dumps({"keys": [key_json(key) for key in keys]}))
        return
    if not keys:
        print("no keys; make one with `cohort keys create PROJECT`")
        return

    def state(key: Key) -> str:
        if key.revoked_at is not None:
            return "revoked"
        return "expired" if key.expires_at is not None and key.expires_at <= now else "valid"

    rows = [
        (
            f"{key.prefix}...",
            names.get(key.project_id, "removed"),
            key.name or "-",
            ", ".join(sorted(key.scopes)),
            state(key),
            _time(key.expires_at),
            _time(key.last_used_at),
            key.id,
        )
        for key in keys
    ]
    _print_table(_KEY_COLUMNS, rows)


def print_audit(entries: Sequence[AuditEntry], *, as_json: bool) -> None:
    """Print entries of the audit log, in the order given."""
    if as_json:
        print(json.dumps({"entries": [asdict(entry) for entry in entries]}))
        return
    rows = [
        (_time(entry.at), entry.actor, entry.action, entry.target, json.dumps(entry.details, ensure_ascii=False))
        for entry in entries
    ]
    _print_table(_AUDIT_COLUMNS, rows)
