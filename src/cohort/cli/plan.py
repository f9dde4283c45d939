"""``cohort plan``: the schedule and predicted times; trains nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from cohort.cli.arguments.options import DebugOption, JsonOption, MaxGpusOption
from cohort.cli.exits import exits

__all__ = ["plan"]

TaskFiles = Annotated[list[Path] | None, typer.Argument(metavar="TASK.yaml...", help="Task files.", show_default=False)]
Gpus = Annotated[
    int | None, typer.Option("--gpus", metavar="N", help="GPUs to plan for.  [default: all of this machine]")
]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", help="Plan for N workers on the CPU.")]
DryRun = Annotated[
    str | None,
    typer.Option(
        "--dry-run", metavar="HARDWARE", help="Plan for GPUs that are not here: 8xH200, 2x8xH100 (two nodes)."
    ),
]
Simulate = Annotated[bool, typer.Option("--simulate", help="Also simulate the plan, with early exits.")]
Exits = Annotated[
    str | None,
    typer.Option(
        "--exits",
        metavar="SHARE|RUN_DIR|CURVES",
        help="For --simulate: the share of its steps a trial trains.  [default: from the selection after warm-up]",
    ),
]
Packs = Annotated[
    bool, typer.Option("--packs", help="Also divide each task's trials into packs over the GPUs of one machine.")
]
Repeat = Annotated[int, typer.Option("--repeat", metavar="N", help="Plan each task N times.")]
Page = Annotated[Path | None, typer.Option("-o", "--output", metavar="PAGE.html", help="Write an HTML page.")]


def plan(
    tasks: TaskFiles = None,
    gpus: Gpus = None,
    workers: Workers = None,
    dry_run: DryRun = None,
    max_gpus_per_task: MaxGpusOption = None,
    simulate: Simulate = False,
    exit_shares: Exits = None,
    packs: Packs = False,
    repeat: Repeat = 1,
    output: Page = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict where and when tasks would run, and how long at worst. Nothing is trained."""
    with exits(as_json=as_json, debug=debug):
        from cohort.core.errors import InputError, Problem
        from cohort.planning.cluster_choice import choose_cluster
        from cohort.planning.exit_shares import exit_shares_of
        from cohort.planning.packs import packs_json, plan_task_packs
        from cohort.planning.page import write_plan_page
        from cohort.planning.planning import load_tasks, plan_json, plan_tasks
        from cohort.planning.simulation import simulate_plan, simulation_json

        if exit_shares is not None and not simulate:
            hint = "Write --simulate as well, or leave --exits out."
            raise InputError(Problem(where="--exits", found=exit_shares, allowed="together with --simulate", hint=hint))
        if output is not None:
            _refuse_unwritable(output)
        choice = choose_cluster(gpus=gpus, workers=workers, dry_run=dry_run)
        named = load_tasks(tasks or (), repeat=repeat)
        shares = exit_shares_of(named, exit_shares, where="--exits") if simulate else {}
        planned = plan_tasks(named, choice, most_gpus=max_gpus_per_task)
        simulation = simulate_plan(planned, exit_shares=shares) if simulate else None
        packed = plan_task_packs(planned, most_gpus=max_gpus_per_task or 1) if packs else ()
        if output is not None:
            write_plan_page(output, planned, simulation=simulation)
        if as_json:
            found = plan_json(planned)
            if simulation is not None:
                found["simulation"] = simulation_json(simulation)
            if packs:
                found["packs"] = packs_json(packed)
            print(json.dumps(found, indent=2))
            return
        from cohort.cli.tables.plan_tables import print_plan

        print_plan(planned, simulation, packed, page=output)


def _refuse_unwritable(page: Path) -> None:
    # before planning, which can take a minute
    from cohort.core.errors import InputError, Problem
    from cohort.core.unusual_path import unusual_path

    if (unusual := unusual_path(page)) is not None:
        found, hint = unusual.found, "Write another file's name."
    elif page.is_dir():
        found, hint = "a directory", f"Write a file's name, such as {page / 'plan.html'}."
    else:
        folder = next((parent for parent in page.absolute().parents if parent.exists()), page.absolute().parent)
        if folder.is_dir() and os.access(folder, os.W_OK):
            return
        found, hint = f"a page in {folder}, which is not a directory that you can write to", "Choose another place."
    raise InputError(Problem(where=f"-o {page}", found=found, allowed="a file to write the page to", hint=hint))
