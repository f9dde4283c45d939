"""``cohort export``: an adapter directory, or the merged model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption, RunDirArgument

__all__ = ["export"]


def export(
    run_dir: RunDirArgument,
    to: Annotated[
        Literal["peft", "merged"], typer.Option("--to", help="An adapter directory, or a merged model.")
    ] = "peft",
    trial: Annotated[int | None, typer.Option("--trial", metavar="N", help="A trial.  [default: the best]")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Where to write.  [default: RUN_DIR/export-peft or -merged]"
        ),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Take an adapter out of a run: as PEFT and vLLM load it, or merged into the base model."""
    with exits(as_json=as_json, debug=debug):
        from cohort.engine.run_directory import RunDirectory

        RunDirectory.open(run_dir)
        from cohort.engine.export import ExportForm, export_adapter

        path = export_adapter(run_dir, form=ExportForm(to), trial_id=trial, output=output)
        print(json.dumps({"path": str(path)}) if as_json else path)
