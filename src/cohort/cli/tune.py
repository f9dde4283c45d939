"""``cohort tune``: one task in, the best adapter out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, TaskArgument

__all__ = ["tune"]


def tune(
    context: typer.Context,
    task: TaskArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="RUN_DIR", help="The run's directory.  [default: runs/TASK]"),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the best adapter for a task.

    All configurations train together on one frozen model; the weak ones stop early.
    Any key of the task file can be set on the command line: --training.seed 3, --search.space.r "[8, 16]".
    """
    run_directory = output if output is not None else Path("runs") / task.stem
    with exits(as_json=as_json, debug=debug, resume=run_directory):
        from cohort.core.errors import InputError
        from cohort.engine.prepare.inputs import load_fitting_task
        from cohort.runs.directory import RunDirectory

        # a directory that is taken is reported with the task's other problems, and before rows are read
        occupied = RunDirectory.find_problem(run_directory)
        loaded = load_fitting_task(task, context.obj or (), also=() if occupied is None else (occupied,))
        if occupied is not None:
            raise InputError(occupied)
        from cohort.cli.progress import RUN_VIEW, watching
        from cohort.cli.run_results import print_results
        from cohort.engine.tune import tune as tune_task

        with watching(RUN_VIEW) as watcher:
            for note in loaded.notes():
                watcher.note(f"note: {note}")
            tune_task(loaded, run_directory, watcher=watcher)
        print_results(run_directory, as_json=as_json)
