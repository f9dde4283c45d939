"""Options that say which service a command of an administrator is about, and who that is."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cohort.store.accounts import Accounts

__all__ = [
    "DEFAULT_FOLDER",
    "DatabaseOption",
    "FolderOption",
    "ProjectArgument",
    "actor",
    "keep_from_others",
    "opened_accounts",
    "read_days",
]

DEFAULT_FOLDER = Path("cohort-service")

FolderOption = Annotated[Path, typer.Option("--folder", metavar="DIR", help="The service's folder.")]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="The service's database, where it is not in the folder: postgresql://USER@HOST/NAME.",
        show_default=False,
    ),
]

ProjectArgument = Annotated[
    str, typer.Argument(metavar="ORGANISATION/PROJECT", help="The project, or its id.", show_default=False)
]


@contextmanager
def opened_accounts(folder: Path, database: str | None, *, creates: bool = False) -> Iterator[Accounts]:
    """Open the tenants and keys of the service that the options name."""
    from cohort.store.accounts import open_accounts

    keep_from_others(folder)
    with open_accounts(folder if database is None else database, creates=creates) as accounts:
        yield accounts


def keep_from_others(folder: Path) -> None:
    """Let what this process writes, and a database that is in ``folder``, be read by this user alone."""
    os.umask(0o077)
    # SQLite gives its log the rights of the database
    for file in folder.glob("service.db*"):
        with suppress(OSError):
            file.chmod(0o600)


def actor() -> str:
    """Return who gives the command, as the audit log says it."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        # a container's user need not have a name
        return f"cli:{os.getuid()}"


def read_days(text: str | None, *, option: str) -> float | None:
    """Return the seconds of ``30d``, ``12h`` or ``90m``; None for none.

    Raises:
        InputError: it is something else.
    """
    from cohort.core.errors import InputError, Problem

    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([dhm])", text.strip())
    if found is None or not int(found.group(1)):
        allowed = "a number of days, hours or minutes such as 30d, 12h or 90m"
        raise InputError(Problem(where=option, found=repr(text), allowed=allowed, hint="Give one of these."))
    return int(found.group(1)) * {"d": 86400.0, "h": 3600.0, "m": 60.0}[found.group(2)]
