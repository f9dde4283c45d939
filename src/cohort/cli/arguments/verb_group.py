"""A verb that has verbs of its own, such as ``cohort queue add``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

__all__ = ["build_group"]


def build_group(verbs: Mapping[str, Callable[..., None]], *, summary: str) -> typer.Typer:
    """Return the group of these verbs; without one of them it prints its help."""
    app = typer.Typer(help=summary, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
    for name, verb in verbs.items():
        app.command(name)(verb)
    return app
