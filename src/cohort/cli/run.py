"""``cohort run``: several tasks on the GPUs there are."""

from __future__ import annotations

import typer

from cohort.cli.exits import exits
from cohort.engine.not_built import refuse_verb

__all__ = ["run"]


def run(context: typer.Context) -> None:
    """Tune several tasks, placed on the GPUs there are: TASK.yaml... --gpus N (not built yet)."""
    with exits(as_json="--json" in context.args, debug="--debug" in context.args):
        refuse_verb("run", arguments=context.args)
