"""``cohort init``: writes a first task file."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption
from cohort.cli.exits import exits
from cohort.core.process.gc_off import collections_off

__all__ = ["init"]


def init(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The base model: a hub id or a directory.")],
    data: Annotated[
        list[str], typer.Argument(metavar="DATA...", help="Training rows: files, a directory or a hub id.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="TASK.yaml", help="The file to write; it must not exist.")
    ] = Path("task.yaml"),
    validation: Annotated[
        str | None,
        typer.Option("--validation", metavar="DATA", help="Validation rows.  [default: a share of the training rows]"),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a task file with comments for a model and rows. It can be tuned as it is.

    Model and rows are read and checked: columns, lengths and the size of the model decide what the file says.
    """
    with exits(as_json=as_json, debug=debug), collections_off():
        from cohort.core.units import counted
        from cohort.prepare.first_task import write_first_task

        new = write_first_task(output, model=model, train=data, validation=validation)
        if as_json:
            print(
                json.dumps(
                    {"task": str(output), "num_trials": new.num_trials, "rows": new.data_note, "example": new.example},
                    indent=2,
                )
            )
            return
        # as a shell takes them: a name may have spaces
        task, run = quote(str(output)), quote(f"runs/{output.stem}")
        trials, epochs = counted(new.num_trials, "configuration"), counted(new.num_train_epochs, "epoch")
        print(f"{output}: {new.data_note}; {trials}, {epochs} each")
        if new.example:
            print(f"\nThe first row as the model sees it, the trained part in brackets:\n\n{new.example}")
        print(f"\n    cohort check {task}\n    cohort tune {task} -o {run}")
