"""``cohort plan``: the schedule and predicted times, nothing trained."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohort.cli.exits import exits
from cohort.cli.options import DebugOption, JsonOption

if TYPE_CHECKING:
    from rich.table import Table

    from cohort.planning.packs import TaskPacks
    from cohort.planning.planning import TaskPlan
    from cohort.planning.simulation import PlanSimulation

__all__ = ["plan"]

# more tasks than a screen has help nobody; the page and --json list them all
_MOST_ROWS = 40


TaskFiles = Annotated[list[Path] | None, typer.Argument(metavar="TASK.yaml...", help="Task files.", show_default=False)]
Gpus = Annotated[
    int | None, typer.Option("--gpus", metavar="N", help="GPUs to plan for.  [default: all of this machine]")
]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", help="Plan for N workers on the CPU.")]
DryRun = Annotated[
    str | None,
    typer.Option(
        "--dry-run", metavar="HARDWARE", help="Plan for GPUs that need not be here: 8xH200, 2x8xH100 (two nodes)."
    ),
]
MaxGpus = Annotated[
    int,
    typer.Option(
        "--max-gpus-per-task", metavar="N", help="Let the plan give one task up to N GPUs (predicted, not built)."
    ),
]
Simulate = Annotated[bool, typer.Option("--simulate", help="Also run the plan in simulated time, with early exits.")]
Exits = Annotated[
    str | None,
    typer.Option(
        "--exits",
        metavar="SHARE|RUN_DIR|CURVES",
        help="For --simulate: how much of its steps a trial does.  [default: the selection after warm-up alone]",
    ),
]
Packs = Annotated[
    bool, typer.Option("--packs", help="Also divide each task's trials into packs over one machine's GPUs.")
]
Repeat = Annotated[int, typer.Option("--repeat", metavar="N", help="Plan each task N times.")]
Page = Annotated[Path | None, typer.Option("-o", "--output", metavar="PAGE.html", help="Write the plan as a page.")]


def plan(
    tasks: TaskFiles = None,
    gpus: Gpus = None,
    workers: Workers = None,
    dry_run: DryRun = None,
    max_gpus_per_task: MaxGpus = 1,
    simulate: Simulate = False,
    exit_shares: Exits = None,
    packs: Packs = False,
    repeat: Repeat = 1,
    output: Page = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show which task would run where and when, and how long it takes at worst; train nothing."""
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
        simulation = None
        if simulate:
            simulation = simulate_plan(planned, exit_shares=shares)
        packed = plan_task_packs(planned, most_gpus=max_gpus_per_task) if packs else ()
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
        _print(planned, simulation, packed, page=output)


def _refuse_unwritable(page: Path) -> None:
    """Refuse a page that cannot be written, before anything is planned."""
    from cohort.core.errors import InputError, Problem

    if page.is_dir():
        found, hint = "a directory", f"Write a file's name, such as {page / 'plan.html'}."
    else:
        folder = next((parent for parent in page.absolute().parents if parent.exists()), page.absolute().parent)
        if folder.is_dir() and os.access(folder, os.W_OK):
            return
        found, hint = f"a page in {folder}, which is no directory that you may write to", "Choose another place."
    raise InputError(Problem(where=f"-o {page}", found=found, allowed="a file to write the page to", hint=hint))


def _print(
    planned: TaskPlan, simulation: PlanSimulation | None, packs: Sequence[TaskPacks], *, page: Path | None
) -> None:
    from rich.console import Console

    from cohort.cli.gantt_text import print_gantt
    from cohort.cli.pack_table import pack_facts, pack_table
    from cohort.cli.trial_table import print_facts

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, 120), no_color=True)
    console.print(_table(planned))
    if len(planned.tasks) > _MOST_ROWS:
        console.print(f"{len(planned.tasks) - _MOST_ROWS} more tasks are not listed; --json lists all\n")
    device = "GPU" if planned.choice.hardware.is_gpu else "worker"
    print_gantt(
        console,
        planned.plan.placements,
        gpu_ids=planned.choice.cluster.gpu_ids,
        names=[task.name for task in planned.tasks],
        device=device,
    )
    console.print()
    print_facts(console, _facts(planned, simulation, page=page))
    if packs:
        console.print()
        console.print(pack_table(packs, device=device, most_rows=_MOST_ROWS))
        print_facts(console, pack_facts(packs, device=device))
        console.print(
            f"note: packs are what several {device}s could do for one task, every trial trained in full; `cohort run` "
            "gives a task one, and a trial every slot that comes free",
            soft_wrap=True,
        )
    for note in _notes(planned, simulation):
        console.print(f"note: {note}", soft_wrap=True)


def _table(planned: TaskPlan) -> Table:
    from rich import box
    from rich.table import Table

    from cohort.core.units import format_bytes, format_duration

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("task", "trials", "priority", "where", "from", "to", "at worst", "memory", "costs"):
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("task", "where", "costs") else "right")
    for task in planned.tasks[:_MOST_ROWS]:
        placement, estimate = planned.placement(task.name), planned.estimates[task.name]
        option = next(o for o in estimate.options if o.num_gpus == placement.num_gpus)
        device = "GPU" if planned.choice.hardware.is_gpu else "worker"
        table.add_row(
            task.name,
            str(estimate.num_trials),
            str(estimate.priority),
            f"{device} {', '.join(map(str, placement.gpu_ids))}",
            format_duration(placement.start_seconds),
            format_duration(placement.end_seconds),
            format_duration(option.seconds),
            format_bytes(option.memory_bytes),
            option.step_source.value,
        )
    return table


def _facts(planned: TaskPlan, simulation: PlanSimulation | None, *, page: Path | None) -> dict[str, str]:
    from cohort.core.units import format_duration

    plan = planned.plan
    above = 100 * max(plan.gap, 0)
    others = ", ".join(
        f"{name} {format_duration(seconds)}"
        for name, seconds in sorted(planned.baselines.items(), key=lambda item: item[1])
    )
    proof = {
        "optimal": "no plan is shorter (in the solver's time units)",
        "feasible": f"the best found; at most {100 * plan.solver_gap:.1f} % above the shortest (solver's time units)",
        "heuristic": "the best list order; the solver was not asked",
    }[plan.status.value]
    facts = {
        "hardware": planned.choice.label + (" (dry run)" if planned.choice.is_dry_run else ""),
        "makespan": f"{format_duration(plan.makespan_seconds)} at worst, every trial trained in full",
        "bound": f"{format_duration(plan.lower_bound_seconds)} at least; this plan is {above:.1f} % above",
        "solver": f"{plan.status.value}: {proof}",
        "in order": others,
    }
    if simulation is not None:
        report, first = simulation.planned, simulation.first_come
        facts["simulated"] = (
            f"{format_duration(report.makespan_seconds)}, trials doing {100 * simulation.mean_share:.0f} % of their "
            f"steps on average; devices held {100 * report.utilisation:.0f} % of the time, "
            f"{report.num_replans} plan{'' if report.num_replans == 1 else 's'}"
        )
        facts["first come"] = f"{format_duration(first.makespan_seconds)} simulated in the same world"
    if page is not None:
        facts["page"] = str(page)
    return facts


def _notes(planned: TaskPlan, simulation: PlanSimulation | None) -> list[str]:
    from cohort.scheduling.cost.model import CostSource

    found = []
    used = [
        option
        for task in planned.tasks
        for option in planned.estimates[task.name].options
        if option.num_gpus == planned.placement(task.name).num_gpus
    ]
    if any(option.step_source is CostSource.ANALYTIC for option in used):
        found.append("analytic costs come from sizes and data sheets; the first run of such a task measures them")
    if any(option.num_gpus > 1 for option in used):
        found.append("one task on several GPUs is predicted only: `cohort run` does not train it yet")
    if simulation is not None and simulation.planned.unfinished:
        found.append(f"{len(simulation.planned.unfinished)} tasks never ended in the simulation")
    return found
