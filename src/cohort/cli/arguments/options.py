"""Options and arguments that several verbs share, and the note that two of them print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from cohort.adapter_files.choose import BestSoFar

__all__ = [
    "DebugOption",
    "JsonOption",
    "MaxNewTokensOption",
    "LostGpuOption",
    "MaxGpusOption",
    "ModelOption",
    "QueueDirOption",
    "RunDirArgument",
    "RunOrQueueArgument",
    "SeedOption",
    "TaskArgument",
    "TemperatureOption",
    "TopPOption",
    "TrialOption",
    "report_note",
    "report_so_far",
]

TaskArgument = Annotated[Path, typer.Argument(metavar="TASK.yaml", help="The task file.", show_default=False)]
RunDirArgument = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="The run's directory: the -o of `cohort tune`.", show_default=False)
]
RunOrQueueArgument = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run or of a queue.", show_default=False)
]
QueueDirOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="The queue's directory; each task's run is in DIR/TASK.")
]
TrialOption = Annotated[
    int | None, typer.Option("--trial", metavar="N", help="The trial to take.  [default: the best]")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model_name_or_path",
        "--base_model",
        metavar="MODEL",
        help="Where the base model is now.  [default: where the run has it]",
        show_default=False,
    ),
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", min=0.0, metavar="T", help="0: always the likeliest token.")
]
TopPOption = Annotated[
    float,
    typer.Option(
        "--top-p", min=1e-6, max=1.0, metavar="P", help="Sample from the likeliest tokens up to this probability."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the sampling.")]
MaxNewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", min=1, metavar="N", help="Most tokens of an answer.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LostGpuOption = Annotated[
    Literal["stop", "resume"],
    typer.Option(
        "--on-lost-gpu",
        help="If the process of a GPU dies: stop with an error, or go on from the last checkpoint.",
    ),
]
MaxGpusOption = Annotated[
    int | None,
    typer.Option(
        "--max-gpus-per-task",
        metavar="N",
        help="Most GPUs (CPU workers) of one task; `num_gpus: auto` gets 1, 2, 4 ... as plans need.  "
        "[default: what the task says, auto is 1]",
        show_default=False,
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def report_so_far(so_far: BestSoFar | None) -> dict[str, int] | None:
    """Print a note if the adapter comes from an unfinished run; return its trial and step for JSON."""
    if so_far is None:
        return None
    report_note(so_far.note)
    return {"trial_id": so_far.trial_id, "step": so_far.step}


def report_note(note: str | None) -> None:
    """Print a note on stderr, so that stdout holds only results."""
    if note is not None:
        print(f"note: {note}", file=sys.stderr)
