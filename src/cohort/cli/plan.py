"""``cohort plan``: the schedule and predicted times, nothing trained."""

from __future__ import annotations

import typer

from cohort.cli.exits import exits
from cohort.engine.not_built import refuse_verb

__all__ = ["plan"]


def plan(context: typer.Context) -> None:
    """Show the schedule and predicted times of several tasks: TASK.yaml... --gpus N (not built yet)."""
    with exits(as_json="--json" in context.args, debug="--debug" in context.args):
        refuse_verb("plan", arguments=context.args)
