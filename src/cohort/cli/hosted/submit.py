"""``cohort submit``: a task for a service; what the other verbs say of one with ``--server``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption, TaskArgument
from cohort.cli.exits import exits

if TYPE_CHECKING:
    from cohort.api.service_client import ServiceClient

__all__ = [
    "ServerOption",
    "client_of",
    "export_remote",
    "print_remote_change",
    "print_remote_report",
    "print_remote_status",
    "print_remote_trials",
    "submit",
]

_SHOWN_COLUMNS = ("trial", "status", "steps", "best_value", "learning_rate", "r", "batch_size")
_RequiredServer = Annotated[str, typer.Option("--server", metavar="URL", help="The address of a `cohort service`.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="URL", help="A `cohort service`: RUN_DIR is the id of a task there.", show_default=False
    ),
]


def submit(
    task: TaskArgument,
    server: _RequiredServer,
    base: Annotated[
        str | None, typer.Option("--base", metavar="NAME", help="A base model there.  [default: the task's]")
    ] = None,
    suffix: Annotated[
        str | None, typer.Option("--suffix", metavar="NAME", help="A part of the name of the model that comes out.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would take, and submit nothing.")] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Submit a task to a service. The files of rows that it names are uploaded.

    The key is that of $COHORT_API_KEY. `cohort status ID --server URL` follows the task; trials, report and export work
    alike.
    """
    with exits(as_json=as_json, debug=debug):
        client = client_of(server)
        if plan:
            _print_plan(client.plan(task, base=base), as_json=as_json)
            return
        task_id = client.submit(task, base=base, suffix=suffix)
        if as_json:
            print(json.dumps({"id": task_id}))
            return
        print(task_id)
        print(f"follow it: cohort status {task_id} --server {server}", file=sys.stderr)


def client_of(server: str) -> ServiceClient:
    from cohort.api.service_client import ServiceClient

    return ServiceClient(server)


def _print_plan(plan: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan, indent=2))
        return
    from cohort.core.units import format_bytes, format_count, format_duration

    seconds = plan["most_seconds"]
    print(f"trials  {plan['trials']}")
    print(f"tokens  at most {format_count(plan['tokens']['most'])}")
    print(f"time    {'unknown' if seconds is None else f'at most {format_duration(seconds)}'} ({plan['time_source']})")
    print(f"memory  {format_bytes(int(plan['memory_bytes']))}")
    for warning in plan["warnings"]:
        print(f"warning: {warning}")


def print_remote_status(task_id: Path, server: str, *, as_json: bool) -> bool:
    """Print where a task of a service stands; return whether it has not ended."""
    client = client_of(server)
    found = client.status(str(task_id))
    is_open = found["status"] not in ("succeeded", "failed", "cancelled")
    if as_json:
        print(json.dumps(found, indent=2))
        return is_open
    error = found["error"]
    for name, value in (
        ("state", found["status"]),
        ("base", found["base_model"]),
        ("model", found["model"]),
        ("tokens", found["trained_tokens"]),
        ("error", None if error is None else error["message"]),
    ):
        if value is not None:
            print(f"{name:<7} {value}")
    events = client.events(str(task_id))
    for event in reversed(events[:5]):
        print(f"        {event['message']}")
    return is_open


def print_remote_trials(task_id: Path, server: str, *, as_json: bool) -> None:
    """Print the trials of a task of a service, best first."""
    found = client_of(server).trials(str(task_id))
    if as_json:
        print(json.dumps({"state": found["state"], "trials": found["trials"]}, indent=2))
        return
    rows = [[_cell(name, trial) for name in _SHOWN_COLUMNS] for trial in found["trials"]]
    widths = [max(map(len, column)) for column in zip(_SHOWN_COLUMNS, *rows, strict=True)]
    for row in (_SHOWN_COLUMNS, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(f"state {found['state']}")


def _cell(name: str, trial: Mapping[str, Any]) -> str:
    value = trial.get(name, (trial.get("parameters") or {}).get(name))
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def print_remote_change(
    task_id: Path,
    server: str,
    action: str,
    numbers: Sequence[int],
    *,
    values: Mapping[str, Any],
    warm_start: bool,
    as_json: bool,
) -> None:
    """Ask a service for a change of trials, and print what became of it."""
    client = client_of(server)
    # a new trial has no number yet
    for number in (*numbers,) or (None,):
        asked = client.change_trial(str(task_id), action, number, values=values, warm_start=warm_start)
        if as_json:
            print(json.dumps(asked))
        else:
            print(asked.get("text") or f"{asked['request']}: asked; the run takes it up after its present step")


def print_remote_report(task_id: Path, server: str, *, as_json: bool) -> None:
    """Write the report of a task of a service into the working directory, and print where it is."""
    path = client_of(server).report(str(task_id), Path(f"{task_id.name}.html"))
    print(json.dumps({"path": str(path)}) if as_json else path)


def export_remote(
    task_id: Path, server: str, *, output: Path | None, trial: int | None, given: Mapping[str, Any], as_json: bool
) -> None:
    """Bring an adapter of a task of a service here, and print where it is.

    Args:
        given: All values of the verb by name; a service reads none but those above.
    """
    import tempfile
    import zipfile

    from cohort.adapter_files.export_place import require_place
    from cohort.core.durable_files import atomic_directory
    from cohort.core.errors import InputError, Problem

    target = Path(task_id.name) if output is None else output
    problems = []
    own = ("run_dir", "server", "output", "trial", "as_json", "debug")
    others = [name for name, value in given.items() if value and name not in own and (name, value) != ("to", "peft")]
    if others:
        option = f"--{others[0].replace('_', '-')}"
        hint = "Leave it out; convert the adapter here with `cohort export`, from a run of this machine."
        problems.append(Problem(where=option, found="with --server", allowed="--to peft, with --server", hint=hint))
    try:
        require_place(target)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    with tempfile.TemporaryDirectory() as folder:
        archive = client_of(server).export(str(task_id), Path(folder) / "adapter.zip", trial=trial)
        # names in it cannot leave the directory: zipfile takes them off
        with zipfile.ZipFile(archive) as opened, atomic_directory(target) as partial:
            opened.extractall(partial)
    print(json.dumps({"path": str(target)}) if as_json else target)
