"""``cohort tenants``: who a service is for, with shares and quotas, usage and the audit log; running or not."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption
from cohort.cli.arguments.service_options import (
    DEFAULT_FOLDER,
    DatabaseOption,
    FolderOption,
    ProjectArgument,
    actor,
    opened_accounts,
)
from cohort.cli.arguments.verb_group import build_group
from cohort.cli.exits import exits

__all__ = ["build_tenants_app"]

_Bound = Annotated[str | None, typer.Option(metavar="N", help="A number, or none for no bound.", show_default=False)]


def add(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ORGANISATION[/PROJECT]",
            help="Both are made where need be; PROJECT is `default`.",
            show_default=False,
        ),
    ],
    weight: Annotated[
        float, typer.Option("--weight", metavar="W", help="Its share of the GPUs' time, relative to others.")
    ] = 1.0,
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Add a project, and its organisation if that is new."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database, creates=True) as accounts:
        from cohort.cli.tables.tenant_tables import project_json
        from cohort.store.tenants.tenants import DEFAULT_PROJECT, check_name

        organisation, _, project = name.partition("/")
        # before anything is made: an organisation without a project would be left behind
        check_name(project or DEFAULT_PROJECT)
        known = {each.name: each for each in accounts.tenants.organisations()}
        owner = known.get(organisation) or accounts.tenants.add_organisation(organisation, actor=actor())
        made = accounts.tenants.add_project(owner.id, project or DEFAULT_PROJECT, actor=actor(), weight=weight)
        shown = f"{owner.name}/{made.name}"
        text = f"added {shown} ({made.id})\nnext: cohort keys create {shown}"
        print(json.dumps(project_json(made, organisation=owner)) if as_json else text)


def list_projects(
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List projects with their weights and quotas."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        from cohort.cli.tables.tenant_tables import print_projects

        print_projects(accounts.tenants.projects(), accounts.tenants.organisations(), as_json=as_json)


def weight(
    project: ProjectArgument,
    value: Annotated[float, typer.Argument(metavar="W", help="2 is twice the GPU time of 1.", show_default=False)],
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Set a project's share of the GPUs' time; it holds from the next decision on."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        from cohort.cli.tables.tenant_tables import print_projects

        changed = accounts.tenants.set_weight(accounts.tenants.project(project).id, value, actor=actor())
        print_projects([changed], accounts.tenants.organisations(), as_json=as_json)


def quota(
    project: ProjectArgument,
    max_stored_bytes: _Bound = None,
    max_open_jobs: _Bound = None,
    max_tokens_per_day: _Bound = None,
    max_requests_per_minute: _Bound = None,
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Set quotas of a project; those that are not named stay. What it has already stays, also above them."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        from cohort.cli.tables.tenant_tables import print_projects
        from cohort.core.units import parse_bytes
        from cohort.store.tenants.tenants import Quotas

        before = accounts.tenants.project(project)
        given: dict[str, tuple[str | None, Callable[[str], int]]] = {
            "max_stored_bytes": (max_stored_bytes, lambda text: 0 if text == "0" else parse_bytes(text)),
            "max_open_jobs": (max_open_jobs, int),
            "max_tokens_per_day": (max_tokens_per_day, int),
            "max_requests_per_minute": (max_requests_per_minute, int),
        }
        quotas = {name: _bound_of(name, text, read, getattr(before, name)) for name, (text, read) in given.items()}
        changed = accounts.tenants.set_quotas(before.id, Quotas(**quotas), actor=actor())
        print_projects([changed], accounts.tenants.organisations(), as_json=as_json)


def _bound_of(name: str, text: str | None, read: Callable[[str], int], before: int | None) -> int | None:
    from cohort.core.errors import InputError, Problem

    if text is None:
        return before
    if text == "none":
        return None
    try:
        return read(text)
    except ValueError as error:
        option = f"--{name.replace('_', '-')}"
        allowed = "a whole number" + (", or a size such as 20GB" if name == "max_stored_bytes" else "") + ", or none"
        problem = Problem(where=option, found=repr(text), allowed=allowed, hint="Give one of these.")
        raise InputError(problem) from error


def remove(
    name: Annotated[
        str,
        typer.Argument(metavar="ORGANISATION[/PROJECT]", help="An organisation with all it has.", show_default=False),
    ],
    is_sure: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Remove a project or an organisation: keys are revoked, jobs cancelled, files and models deleted. No way back."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        is_project = "/" in name or name.startswith("proj_")
        found = accounts.tenants.project(name) if is_project else accounts.tenants.organisation(name)
        if not is_sure and not typer.confirm(f"Remove {name} with its files, models and keys?", err=True):
            print("nothing was removed", file=sys.stderr)
            raise typer.Exit(1)
        if is_project:
            accounts.tenants.remove_project(found.id, actor=actor())
        else:
            accounts.tenants.remove_organisation(found.id, actor=actor())
        print(json.dumps({"removed": found.id}) if as_json else f"removed {name} ({found.id})")


def usage(
    first_day: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="From this day on (2026-10-31, UTC).")
    ] = None,
    last_day: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Up to this day.")] = None,
    form: Annotated[Literal["csv", "json"], typer.Option("--format", help="How to print it.")] = "csv",
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    debug: DebugOption = False,
) -> None:
    """Print what each project used on each day: tokens by kind, GPU seconds, bytes times days, requests."""
    with exits(as_json=form == "json", debug=debug), opened_accounts(folder, database) as accounts:
        from cohort.store.tenants.usage import check_day, export_usage

        for option, day in (("--from", first_day), ("--to", last_day)):
            check_day(day, where=option)
        rows = [asdict(row) for row in export_usage(accounts.database, first_day=first_day, last_day=last_day)]
        if form == "json":
            print(json.dumps({"usage": rows}))
            return
        writer = csv.DictWriter(sys.stdout, ["project_id", "day", "kind", "amount"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def audit(
    project: Annotated[
        str | None,
        typer.Argument(metavar="[ORGANISATION/PROJECT]", help="Entries about this project.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="The newest N entries.")] = 50,
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Print what administrators did, the newest first."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        from cohort.cli.tables.tenant_tables import print_audit
        from cohort.store.tenants.audit import list_audit

        project_id = None if project is None else accounts.tenants.project(project).id
        print_audit(list_audit(accounts.database, project_id=project_id, limit=limit).items, as_json=as_json)


def build_tenants_app() -> typer.Typer:
    return build_group(
        {
            "add": add,
            "list": list_projects,
            "weight": weight,
            "quota": quota,
            "remove": remove,
            "usage": usage,
            "audit": audit,
        },
        summary="Organisations and projects of a service: shares, quotas, usage. Needs the extra `service`.",
    )
