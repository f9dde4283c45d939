"""``cohort queue``: adds tasks to a queue, removes and lists them, whether or not the queue is running."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption, QueueDirOption
from cohort.cli.arguments.verb_group import build_group
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.task_queue.records import QueuedTask

__all__ = ["build_queue_app", "print_added"]


def add(
    tasks: Annotated[list[Path], typer.Argument(metavar="TASK.yaml...", help="Task files.", show_default=False)],
    output: QueueDirOption = Path("runs"),
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check tasks and add them to a queue. A `cohort run` on this queue picks them up at once."""
    with exits(as_json=as_json, debug=debug):
        from cohort.task_queue.operations import add_to_queue
        from cohort.task_queue.store import queue_holder

        print_added(add_to_queue(tasks, output), output, holder=queue_holder(output), as_json=as_json)


def print_added(added: Sequence[QueuedTask], directory: Path, *, holder: str | None, as_json: bool) -> None:
    """Print which tasks were added to the queue in ``directory``, and which process runs it."""
    if as_json:
        print(json.dumps({"added": [task.name for task in added], "holder": holder}))
        return
    for task in added:
        print(f"added {task.name}" + (f", priority {task.priority}" if task.priority else ""))
    if not added:
        print("nothing to add: the queue already has these tasks")
    print(f"{holder} runs the queue" if holder else f"to run it: cohort run -o {directory}")


def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Tasks in the queue.", show_default=False)],
    output: QueueDirOption = Path("runs"),
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Remove tasks from a queue. A running task saves its state and stops; run directories stay."""
    with exits(as_json=as_json, debug=debug):
        from cohort.task_queue.operations import remove_from_queue

        remove_from_queue(names, output)
        print(json.dumps({"removed": names}) if as_json else "\n".join(f"removed {name}" for name in names))


def list_tasks(output: QueueDirOption = Path("runs"), as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the tasks of a queue and their state, like `cohort status`."""
    with exits(as_json=as_json, debug=debug):
        from cohort.cli.tables.queue_table import print_queue
        from cohort.task_queue.status import read_queue_status

        print_queue(read_queue_status(output), as_json=as_json)


def build_queue_app() -> typer.Typer:
    return build_group(
        {"add": add, "remove": remove, "list": list_tasks},
        summary="Add, remove and list the tasks of a queue, running or not.",
    )
