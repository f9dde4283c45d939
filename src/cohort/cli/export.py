"""``cohort export``: an adapter directory, or the merged model."""

from __future__ import annotations

import json
import sys
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
    """Take an adapter out of a run: as PEFT and vLLM load it, or merged into the base model.

    Of a run that has not finished it is the best checkpoint so far, which is said.
    """
    with exits(as_json=as_json, debug=debug):
        from cohort.runs.directory import RunDirectory

        RunDirectory.open(run_dir)
        from cohort.engine.adapter_files.export import ExportForm, export_adapter

        exported = export_adapter(run_dir, form=ExportForm(to), trial_id=trial, output=output)
        so_far = exported.so_far
        if so_far is not None:
            print(f"note: {so_far.note}", file=sys.stderr)
        if as_json:
            best = None if so_far is None else {"trial_id": so_far.trial_id, "step": so_far.step}
            print(json.dumps({"path": str(exported.path), "best_so_far": best}))
        else:
            print(exported.path)
