"""``cohort export``: an adapter directory, or the merged model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from cohort.cli.exits import exits
from cohort.cli.options import (
    DebugOption,
    JsonOption,
    ModelOption,
    RunDirArgument,
    TrialOption,
    report_note,
    report_so_far,
)

__all__ = ["export"]


def export(
    run_dir: RunDirArgument,
    to: Annotated[
        Literal["peft", "merged"],
        typer.Option("--to", help="peft: an adapter directory; merged: the base model with the adapter added in."),
    ] = "peft",
    trial: TrialOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="A new directory.  [default: RUN_DIR/export-peft or -merged]"
        ),
    ] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Export an adapter, or merge it into the base model.

    Unfinished runs use the best checkpoint so far and say so.
    """
    with exits(as_json=as_json, debug=debug):
        from cohort.runs.directory import RunDirectory

        # before the import below, which loads torch: a wrong path is reported immediately
        RunDirectory.open(run_dir)
        from cohort.adapter_files.export import ExportForm, export_adapter

        exported = export_adapter(run_dir, form=ExportForm(to), trial_id=trial, output=output, model=model)
        report_note(exported.note)
        best = report_so_far(exported.so_far)
        print(json.dumps({"path": str(exported.path), "best_so_far": best}) if as_json else exported.path)
