"""``cohort keys``: makes, lists and revokes the keys of a service, whether or not it is running."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption
from cohort.cli.arguments.service_options import (
    DEFAULT_FOLDER,
    DatabaseOption,
    FolderOption,
    ProjectArgument,
    actor,
    opened_accounts,
    read_days,
)
from cohort.cli.arguments.verb_group import build_group
from cohort.cli.exits import exits

__all__ = ["build_keys_app"]


def create(
    project: ProjectArgument,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What people call the key.")] = "",
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="What it opens: inference, fine_tuning, tinker, tasks, metrics or admin; can be repeated.  "
            "[default: the first four]",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="After 30d, 12h or 90m.  [default: never]")
    ] = None,
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Make a key for a project and print it: this once, for only its SHA-256 is kept."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        from cohort.cli.tables.tenant_tables import key_json
        from cohort.store.tenants.keys import TENANT_SCOPES, read_scopes

        new = accounts.keys.create(
            accounts.tenants.project(project).id,
            actor=actor(),
            name=name,
            scopes=TENANT_SCOPES if scopes is None else read_scopes(scopes),
            lifetime_seconds=read_days(expires, option="--expires"),
        )
        if as_json:
            print(json.dumps({**key_json(new.key), "key": new.text}))
            return
        # the key alone on standard output: KEY=$(cohort keys create acme/default)
        print(new.text)
        print(f"made {new.key.id}; the key is shown this once", file=sys.stderr)


def list_keys(
    project: Annotated[
        str | None,
        typer.Argument(metavar="[ORGANISATION/PROJECT]", help="Keys of this project only.", show_default=False),
    ] = None,
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List keys, with what they open and when they were last used, without their secrets."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        from cohort.cli.tables.tenant_tables import print_keys

        owners = {organisation.id: organisation.name for organisation in accounts.tenants.organisations()}
        names = {each.id: f"{owners[each.organisation_id]}/{each.name}" for each in accounts.tenants.projects()}
        keys = accounts.keys.list(None if project is None else accounts.tenants.project(project).id)
        with accounts.database.read() as connection:
            now = accounts.database.now(connection)
        print_keys(keys, names, now=now, as_json=as_json)


def revoke(
    keys: Annotated[list[str], typer.Argument(metavar="KEY_ID...", help="Ids, as listed.", show_default=False)],
    folder: FolderOption = DEFAULT_FOLDER,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Revoke keys. A running service refuses them within a few seconds."""
    with exits(as_json=as_json, debug=debug), opened_accounts(folder, database) as accounts:
        for key in keys:
            accounts.keys.revoke(key, actor=actor())
        print(json.dumps({"revoked": keys}) if as_json else "\n".join(f"revoked {key}" for key in keys))


def build_keys_app() -> typer.Typer:
    return build_group(
        {"create": create, "list": list_keys, "revoke": revoke},
        summary="Make, list and revoke the keys of a service. Needs the extra `service`.",
    )
