"""One offline HTML page of a plan: the drawing, the tasks, other orders for comparison, and a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from cohort.core.durable_files import write_text
from cohort.core.units import counted, format_bytes, format_duration
from cohort.planning.planning import TaskPlan
from cohort.planning.simulation import PlanSimulation
from cohort.report.drawings.gantt import TaskBar, gantt_drawing, gantt_legend
from cohort.report.gantt_page import gantt_page, span_of, table_of
from cohort.scheduling.cost.model import CostSource
from cohort.scheduling.placement.records import Placement

__all__ = ["plan_page", "write_plan_page"]

# every figure says where it is from: an estimate must not pass for a measurement
SOURCES: Mapping[CostSource, str] = {
    CostSource.MEASURED: "measured on this hardware",
    CostSource.SCALED: "arithmetic, corrected by a few measured steps",
    CostSource.ANALYTIC: "arithmetic, not measured",
}


def write_plan_page(path: Path, planned: TaskPlan, *, simulation: PlanSimulation | None = None) -> None:
    """Write :func:`plan_page` to ``path``, whole or not at all.

    Raises:
        StorageFullError: no space is left.
    """
    write_text(path, plan_page(planned, simulation=simulation))


def plan_page(planned: TaskPlan, *, simulation: PlanSimulation | None = None) -> str:
    """Return the page of a plan; a simulation is drawn below each planned bar."""
    actual = [
        TaskBar(
            task=segment.task_id,
            gpu_ids=segment.gpu_ids,
            start_seconds=segment.start_seconds,
            end_seconds=segment.end_seconds,
            note="with early exits",
        )
        for segment in (simulation.planned.segments if simulation else ())
    ]
    plan, choice = planned.plan, planned.choice
    gap = f"at most {100 * max(plan.gap, 0):.1f} % above the lower bound of {format_duration(plan.lower_bound_seconds)}"
    cards = [
        (format_duration(plan.makespan_seconds), f"planned at worst, without early exit: {gap}"),
        (plan.status.value, f"what the solver says; order by {plan.policy}"),
    ]
    device = "GPU" if choice.hardware.is_gpu else "worker"
    if simulation is not None:
        report = simulation.planned
        words = f"simulated, trials doing {100 * simulation.mean_share:.0f} % of their steps on average"
        held = f"{device}s held {100 * report.utilisation:.0f} % of the time"
        cards.append((format_duration(report.makespan_seconds), f"{words}; {held}"))
    names = [task.name for task in planned.tasks]
    drawing = gantt_drawing(
        bars_of(plan.placements),
        gpu_ids=choice.cluster.gpu_ids,
        actual=actual,
        tasks=names,
        device=device,
        happened="simulated",
    )
    # without a simulation there is one kind of bar, and a legend of kinds would say nothing
    kinds = [("planned", "planned, at worst"), ("actual", "simulated, with early exits")] if actual else []
    return gantt_page(
        title=f"Plan of {counted(len(planned.tasks), 'task')} on {choice.label}",
        cards=cards,
        drawing=drawing,
        legend=gantt_legend(names, kinds=kinds),
        tables=[_task_table(planned, simulated=actual), _baseline_table(planned)],
    )


def bars_of(placements: Sequence[Placement]) -> list[TaskBar]:
    return [
        TaskBar(task=p.task_id, gpu_ids=p.gpu_ids, start_seconds=p.start_seconds, end_seconds=p.end_seconds)
        for p in placements
    ]


def _task_table(planned: TaskPlan, *, simulated: Sequence[TaskBar]) -> str:
    rows = []
    for task in planned.tasks:
        placement, estimate = planned.placement(task.name), planned.estimates[task.name]
        option = next(o for o in estimate.options if o.num_gpus == placement.num_gpus)
        rows.append(
            [
                task.name,
                str(estimate.num_trials),
                ", ".join(map(str, placement.gpu_ids)),
                f"{format_duration(placement.start_seconds)} to {format_duration(placement.end_seconds)}",
                *([span_of([bar for bar in simulated if bar.task == task.name])] if simulated else []),
                format_duration(option.seconds),
                format_bytes(option.memory_bytes),
                SOURCES[option.step_source],
            ]
        )
    when = ("planned, at worst", "simulated") if simulated else ("when",)
    head = ("task", "trials", "devices", *when, "takes at worst", "memory of each", "seconds of a step are")
    return table_of("Tasks", head, rows)


def _baseline_table(planned: TaskPlan) -> str:
    best = planned.plan.makespan_seconds
    rows = [["this plan", format_duration(best), ""]]
    for name, seconds in sorted(planned.baselines.items(), key=lambda item: item[1]):
        # a plan that takes no time has no longer orders
        longer = seconds / best - 1 if best else 0.0
        rows.append([name, format_duration(seconds), f"+{100 * longer:.1f} %" if math.isfinite(longer) else ""])
    return table_of("Other orders", ("order", "until the last end", "longer"), rows)
