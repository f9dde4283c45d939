"""One offline HTML page of a plan: the drawing, the tasks, what other orders would take, what happened instead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from cohort.core.durable_files import write_text
from cohort.core.units import format_bytes, format_duration
from cohort.engine.report.gantt import Pause, TaskBar, gantt_drawing, gantt_legend
from cohort.engine.task_plan.planning import TaskPlan
from cohort.engine.task_plan.simulation import PlanSimulation
from cohort.scheduling.cost_model import CostSource
from cohort.scheduling.placement_records import Placement

__all__ = ["planned_against_actual_page", "plan_page", "write_plan_page"]

_STYLE = Path(__file__).parent.parent / "report" / "report.css"

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
    """Return the page of a plan; with a simulation, what it met is drawn below each planned bar."""
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
    kinds = [("planned", "planned, at worst"), ("actual", "simulated, with early exits")] if actual else []
    return _page(
        title=f"Plan of {len(planned.tasks)} tasks on {choice.label}",
        cards=cards,
        drawing=drawing,
        legend=gantt_legend(names, kinds=kinds),
        tables=[_task_table(planned, simulated=actual), _baseline_table(planned)],
    )


def planned_against_actual_page(
    planned: Sequence[TaskBar],
    actual: Sequence[TaskBar],
    *,
    gpu_ids: Sequence[int],
    states: Mapping[str, str],
    title: str,
    device: str = "GPU",
    endings: Sequence[tuple[str, str]] = (),
    pauses: Sequence[Pause] = (),
) -> str:
    """Return a page that draws what happened below what was planned, with the state and both ends of every task.

    Args:
        planned: The first plan of each task.
        actual: Stretches in which tasks ran; a task that went on after a failure has several.
        gpu_ids: All devices.
        states: Of every task by name, in the order of the table: a word, then more after a colon where there is any.
        title: Of the page.
        device: What a row is: GPU or worker.
        endings: (shape, in words) of the marks at the ends of ``actual``.
        pauses: Times that no bar's seconds count.
    """
    ends = [max((bar.end_seconds for bar in bars), default=0.0) for bars in (planned, actual)]
    counts = Counter(state.partition(":")[0] for state in states.values())
    cards = [
        (f"{counts['done']} of {len(states)} done", ", ".join(f"{count} {state}" for state, count in counts.items())),
        (format_duration(ends[0]), "planned until the last end, without early exit"),
        (format_duration(ends[1]), "until the last end"),
    ]
    if pauses:
        stopped = sum(pause.seconds for pause in pauses)
        cards.append((format_duration(stopped), "nobody worked the queue off: left out of all other times"))
    rows = []
    for name, state in states.items():
        mine = [[bar for bar in bars if bar.task == name] for bars in (planned, actual)]
        rows.append([name, state, *map(_span, mine), str(len(mine[1]))])
    drawing = gantt_drawing(planned, gpu_ids=gpu_ids, actual=actual, tasks=list(states), device=device, pauses=pauses)
    kinds = [("planned", "planned when first placed, without early exit"), ("actual", "what happened")]
    legend = gantt_legend(list(states), kinds=kinds, endings=endings, pauses=bool(pauses))
    table = _table("Tasks", ("task", "state", "planned", "actual", "stretches"), rows)
    return _page(title=title, cards=cards, legend=legend, drawing=drawing, tables=[table])


def _span(bars: Sequence[TaskBar]) -> str:
    """Return from when to when ``bars`` last."""
    if not bars:
        return "-"
    start, end = min(bar.start_seconds for bar in bars), max(bar.end_seconds for bar in bars)
    return f"{format_duration(start)} to {format_duration(end)}"


def bars_of(placements: Sequence[Placement]) -> list[TaskBar]:
    """Return placements as bars."""
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
                *([_span([bar for bar in simulated if bar.task == task.name])] if simulated else []),
                format_duration(option.seconds),
                format_bytes(option.memory_bytes),
                SOURCES[option.step_source],
            ]
        )
    when = ("planned, at worst", "simulated") if simulated else ("when",)
    head = ("task", "trials", "devices", *when, "takes at worst", "memory of each", "seconds of a step are")
    return _table("Tasks", head, rows)


def _baseline_table(planned: TaskPlan) -> str:
    best = planned.plan.makespan_seconds
    rows = [["this plan", format_duration(best), ""]]
    for name, seconds in sorted(planned.baselines.items(), key=lambda item: item[1]):
        longer = seconds / best - 1 if best else 0.0
        rows.append([name, format_duration(seconds), f"+{100 * longer:.1f} %" if math.isfinite(longer) else ""])
    return _table("Other orders", ("order", "until the last end", "longer"), rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<h2>{escape(title)}</h2><div class="wide"><table><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _page(*, title: str, cards: Sequence[tuple[str, str]], legend: str, drawing: str, tables: Sequence[str]) -> str:
    shown = "".join(
        f'<div class="card"><div class="big">{escape(big)}</div><p>{escape(p)}</p></div>' for big, p in cards
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body><h1>{escape(title)}</h1>"
        f'<div class="cards">{shown}</div><h2>Tasks over time</h2>{legend if drawing else ""}'
        f'<figure class="wide">{drawing}</figure>'
        f"{''.join(tables)}</body></html>\n"
    )
