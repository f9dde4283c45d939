"""Prints a plan: tasks, drawing, predicted times, packs and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from cohort.cli.tables.fitted_table import TableColumn, fitted_table
from cohort.cli.tables.gantt_text import print_gantt
from cohort.cli.tables.trial_table import left_out_text, print_facts, wide_console
from cohort.core.units import counted, format_bytes, format_duration
from cohort.planning.estimate.estimate import OptionEstimate
from cohort.planning.packs import TaskPacks
from cohort.planning.planning import TaskPlan
from cohort.planning.simulation import PlanSimulation
from cohort.scheduling.cost.model import CostSource

__all__ = ["print_plan"]

# more tasks do not fit on a screen; the page and --json list them all
_MOST_ROWS = 40


def print_plan(
    planned: TaskPlan, simulation: PlanSimulation | None, packs: Sequence[TaskPacks], *, page: Path | None
) -> None:
    """Print a plan, with its simulation and packs where there are any."""
    console = wide_console(120)
    table, left_out = _task_table(planned, width=console.width)
    console.print(table)
    if len(planned.tasks) > _MOST_ROWS:
        console.print(f"{len(planned.tasks) - _MOST_ROWS} more tasks are not listed; --json lists all\n")
    device = _device(planned)
    print_gantt(
        console,
        planned.plan.placements,
        gpu_ids=planned.choice.cluster.gpu_ids,
        names=[task.name for task in planned.tasks],
        device=device,
    )
    console.print()
    hidden = {"hidden": left_out_text(left_out, elsewhere="--json has all")} if left_out else {}
    print_facts(console, hidden | _facts(planned, simulation, page=page))
    if packs:
        console.print()
        console.print(_pack_table(packs, device=device, width=console.width))
        print_facts(console, {own.task: _pack_summary(own, device=device) for own in packs})
        console.print(
            f"note: packs show what several {device}s could do for one task, with every trial trained in full; "
            "a run begins the next trial instead as soon as one exits early",
            soft_wrap=True,
        )
    for note in _notes(planned, simulation):
        console.print(f"note: {note}", soft_wrap=True)


def _device(planned: TaskPlan) -> str:
    return "GPU" if planned.choice.hardware.is_gpu else "worker"


def _task_table(planned: TaskPlan, *, width: int) -> tuple[Table, tuple[str, ...]]:
    rows = []
    for task in planned.tasks[:_MOST_ROWS]:
        placement, estimate = planned.placement(task.name), planned.estimates[task.name]
        option = _used_option(planned, task.name)
        rows.append(
            (
                task.name,
                str(estimate.num_trials),
                str(estimate.priority),
                f"{_device(planned)} {', '.join(map(str, placement.gpu_ids))}",
                format_duration(placement.start_seconds),
                format_duration(placement.end_seconds),
                format_duration(option.seconds),
                format_bytes(option.memory_bytes),
                option.step_source.value,
            )
        )
    columns = (
        TableColumn(heading="task", justify="left", least_width=16, wraps=True),
        TableColumn(heading="trials", leave_out=4),
        TableColumn(heading="priority", leave_out=2),
        TableColumn(heading="where", justify="left", leave_out=5),
        TableColumn(heading="from"),
        TableColumn(heading="to"),
        TableColumn(heading="at worst"),
        TableColumn(heading="memory", leave_out=3),
        TableColumn(heading="costs", justify="left", leave_out=1),
    )
    return fitted_table(columns, rows, width=width)


def _used_option(planned: TaskPlan, name: str) -> OptionEstimate:
    num_gpus = planned.placement(name).num_gpus
    return next(option for option in planned.estimates[name].options if option.num_gpus == num_gpus)


def _facts(planned: TaskPlan, simulation: PlanSimulation | None, *, page: Path | None) -> dict[str, str]:
    plan = planned.plan
    above = 100 * max(plan.gap, 0)
    others = ", ".join(
        f"{name} {format_duration(seconds)}"
        for name, seconds in sorted(planned.baselines.items(), key=lambda item: item[1])
    )
    proof = {
        "optimal": "no shorter plan exists (in the solver's time units)",
        "feasible": f"the best found; at most {100 * plan.solver_gap:.1f} % above the shortest (solver's time units)",
        "heuristic": "the best list order; the solver was not run",
    }[plan.status.value]
    facts = {
        "hardware": planned.choice.label + (" (dry run)" if planned.choice.is_dry_run else ""),
        "makespan": f"{format_duration(plan.makespan_seconds)} at worst, every trial trained in full",
        "bound": f"{format_duration(plan.lower_bound_seconds)} at least; this plan is {above:.1f} % above",
        "solver": f"{plan.status.value}: {proof}",
        "other orders": others,
    }
    if simulation is not None:
        report, first = simulation.planned, simulation.first_come
        facts["simulated"] = (
            f"{format_duration(report.makespan_seconds)}, trials train {100 * simulation.mean_share:.0f} % of their "
            f"steps on average; devices busy {100 * report.utilisation:.0f} % of the time, "
            f"{counted(report.num_replans, 'plan')}"
            + (f"; {counted(report.num_joined, 'task')} joined another one on its GPU" if report.num_joined else "")
        )
        facts["first come"] = f"{format_duration(first.makespan_seconds)} simulated in the same way"
    if page is not None:
        facts["page"] = str(page)
    return facts


def _notes(planned: TaskPlan, simulation: PlanSimulation | None) -> list[str]:
    found = []
    options = {task.name: _used_option(planned, task.name) for task in planned.tasks}
    used = list(options.values())
    # tasks of one base model have one line
    numerics = dict.fromkeys(option.numerics for option in used if option.numerics is not None)
    for text in numerics:
        names = [name for name, option in options.items() if option.numerics == text]
        whose = f" for {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}" if len(numerics) > 1 else ""
        found.append(f"numerics{whose}: {text}")
    if any(option.step_source is CostSource.ANALYTIC for option in used):
        found.append("analytic costs come from sizes and data sheets; the first run of such a task measures them")
    if any(option.is_tight for option in used):
        found.append("memory.limit is tight by an estimate from above; the run measures its passes before it trains")
    if simulation is not None and simulation.planned.unfinished:
        found.append(f"{counted(len(simulation.planned.unfinished), 'task')} never ended in the simulation")
    return found


def _pack_table(packs: Sequence[TaskPacks], *, device: str, width: int) -> Table:
    rows = []
    jobs = [(own, job) for own in packs for job in own.plan.jobs]
    for own, job in jobs[:_MOST_ROWS]:
        kinds = Counter(own.parameters[trial_id] for trial_id in job.trial_ids)
        rows.append(
            (
                own.task,
                f"{device} {', '.join(map(str, job.gpu_ids))}",
                format_duration(job.start_seconds),
                format_duration(job.end_seconds),
                str(len(job.trial_ids)),
                ", ".join(
                    f"{f'{count} of ' if count > 1 else ''}{r} x {size}" for (r, size), count in sorted(kinds.items())
                ),
            )
        )
    if len(jobs) > _MOST_ROWS:
        rows.append(("...", "", "", "", "", f"{len(jobs) - _MOST_ROWS} more; --json lists all"))
    columns = (
        TableColumn(heading="task", justify="left", least_width=8, wraps=True),
        TableColumn(heading="pack on", justify="left", least_width=8, wraps=True),
        TableColumn(heading="from"),
        TableColumn(heading="to"),
        TableColumn(heading="trials"),
        TableColumn(heading="r x batch size", justify="left", least_width=12, wraps=True),
    )
    table, _ = fitted_table(columns, rows, width=width)
    return table


def _pack_summary(own: TaskPacks, *, device: str) -> str:
    plan, count = own.plan, len(own.plan.jobs)
    above = 100 * (plan.makespan_seconds / own.bound_seconds - 1) if own.bound_seconds else 0.0
    devices = counted(plan.num_gpus, device)
    return (
        f"{counted(count, 'pack')} on {devices} end in {format_duration(plan.makespan_seconds)}, "
        f"{above:.1f} % above the bound over all packings; training on one {device} takes "
        f"{format_duration(own.alone_seconds)}"
    )
