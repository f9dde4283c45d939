"""Options and arguments that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DebugOption", "JsonOption", "QueueDirOption", "RunDirArgument", "TaskArgument"]

TaskArgument = Annotated[Path, typer.Argument(metavar="TASK.yaml", help="The task file.", show_default=False)]
RunDirArgument = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="A run's directory, as `cohort tune -o` made it.", show_default=False)
]
QueueDirOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="DIR", help="The queue, and the parent of its run directories.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
