"""What the verbs that listen have in common: address, keys, and the packages of the extra `serve`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

__all__ = ["ApiKeysOption", "HostOption", "given_keys", "require_packages"]

_KEY_VARIABLE = "COHORT_API_KEY"

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


def require_packages(verb: str, needed: Sequence[str]) -> None:
    """Check that packages of the extra `serve` are installed.

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
                allowed="the extra `serve`: fastapi, prometheus-client, protobuf and uvicorn",
                hint="Run `pip install 'cohort-lora[serve]'`.",
            )
        )
