"""What the verbs that listen have in common: address, keys, and the packages of the extra `serve`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ApiKeysOption", "HostOption", "given_keys", "require_packages", "require_shown"]

_KEY_VARIABLE = "COHORT_API_KEY"
_EXTRAS = {
    "serve": "the extra `serve`: fastapi, prometheus-client, protobuf and uvicorn",
    "ray": "the optional package ray",
    "service": "the extra `service`: that of `serve`, and alembic, fsspec, python-multipart and sqlalchemy",
}

HostOption = Annotated[str, typer.Option("--host", metavar="HOST", help="The address to listen on.")]
ApiKeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key", metavar="KEY", help=f"What clients must send; can be repeated.  [default: ${_KEY_VARIABLE}]"
    ),
]


def given_keys(given: list[str] | None) -> tuple[str, ...]:
    """Return the keys of the command line, else the one of the environment, if it has one."""
    return tuple(given or ()) or tuple(filter(None, [os.environ.get(_KEY_VARIABLE)]))


def require_packages(verb: str, needed: Sequence[str], *, extra: str = "serve") -> None:
    """Check that packages of an extra are installed.

    Raises:
        InputError: some are not.
    """
    from importlib.util import find_spec

    from cohort.core.errors import InputError, Problem

    # a module of a package that is absent cannot even be looked for
    missing = [name for name in needed if find_spec(name.partition(".")[0]) is None or find_spec(name) is None]
    if missing:
        raise InputError(
            Problem(
                where=verb,
                found=f"no package {', '.join(missing)}",
                allowed=_EXTRAS[extra],
                hint=f"Run `pip install 'cohort-lora[{extra}]'`.",
            )
        )


def require_shown(runs_dir: Path, *, host: str, keys: Sequence[str]) -> None:
    """Check that a folder can be shown at an address, and that only those see it who may.

    Raises:
        InputError: it is no folder, or every machine that reaches the address could read it.
    """
    from cohort.core.errors import InputError, Problem
    from cohort.core.source_location import Place
    from cohort.service.dashboard.settings import is_loopback

    if not runs_dir.is_dir():
        raise InputError(
            Problem(
                where=str(runs_dir),
                found="a file" if runs_dir.exists() else "nothing",
                allowed="a folder of runs, a queue's directory, or one run",
                hint="Name the folder that `cohort tune -o` writes to, or the one above it.",
            )
        )
    if not is_loopback(host) and not keys:
        raise InputError(
            Problem(
                where=Place(option="command line --host"),
                found=f"{host} without a key: every machine that reaches it could read the runs",
                allowed="an address of this machine alone, or a key",
                hint="Write --api-key KEY or set COHORT_API_KEY; or keep 127.0.0.1 and forward the port with ssh -L.",
            )
        )
