"""Shows a queue: its tasks as a table, its progress as a line, and one task that has not begun."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohort.cli.tables.fitted_table import TableColumn, fitted_table
from cohort.cli.tables.trial_table import format_value, left_out_text, print_facts, wide_console
from cohort.cli.terminal.progress import View
from cohort.core.units import counted, format_duration
from cohort.task_queue.progress import QueueProgress, TaskView
from cohort.task_queue.records import TaskState
from cohort.task_queue.status import QueueStatus, UnstartedTask, queue_status_json, unstarted_task_json

__all__ = ["QUEUE_VIEW", "print_queue", "print_unstarted", "queue_line", "task_table"]

# in the order in which they are counted
_STYLES = {
    TaskState.RUNNING: "cyan",
    TaskState.QUEUED: "dim",
    TaskState.DONE: "green",
    TaskState.FAILED: "red",
    TaskState.HELD: "yellow",
    TaskState.REMOVED: "dim",
}


def _count_states(progress: QueueProgress) -> str:
    counts = ((progress.count(state), state.value) for state in _STYLES)
    return ", ".join(f"{count} {name}" for count, name in counts if count) or "no tasks"


def queue_line(progress: QueueProgress) -> str:
    """Return a queue at one moment in one line."""
    parts = [f"[{format_duration(progress.now_seconds)}] {_count_states(progress)}"]
    busy = [f"{slot.device}: {slot.task or slot.state}" for slot in progress.slots]
    if busy:
        parts.append(", ".join(busy))
    if progress.end_seconds is not None:
        parts.append(f"about {format_duration(max(progress.end_seconds - progress.now_seconds, 0.0))} left")
    return " | ".join(parts)


def _span(start: float | None, end: float | None) -> str:
    if start is None:
        return "-"
    return f"{format_duration(start)} to {format_duration(end) if end is not None else '...'}"


def _trials(task: TaskView) -> str:
    if not task.num_trials:
        return "-"
    early = f", {task.num_early} early" if task.num_early else ""
    return f"{task.num_ended}/{task.num_trials} ended{early}"


def task_table(
    progress: QueueProgress, *, width: int, metric_labels: Mapping[str, str] | None = None
) -> tuple[Table, tuple[str, ...]]:
    """Return the tasks in the order they were added, with planned and actual times, and what ``width`` left out.

    ``metric_labels`` says by task what its best value is.
    """
    labels = metric_labels or {}
    # one metric of all stands in the heading
    metric = next(iter(labels.values())) if len(set(labels.values())) == 1 else ""
    priority = ["priority"] if any(task.priority for task in progress.tasks) else []
    headings = ("task", "state", *priority, "where", "trials", "steps", "best", "first planned", "actual")
    rows: list[Sequence[str | Text]] = []
    for task in progress.tasks:
        actual = (task.actual_start, task.actual_end)
        if not task.state.is_final and task.expected_end is not None:
            # a task that takes longer than predicted ends at the earliest now
            end = max(task.expected_end, progress.now_seconds)
            actual = (task.actual_start or task.expected_start, end)
        expected = "" if actual[1] is None or task.state.is_final else "about "
        rows.append(
            (
                task.name,
                Text(task.state.value, style=_STYLES[task.state]),
                *(str(task.priority) for _ in priority),
                _where(task),
                _trials(task),
                "-" if task.share_done is None else f"{100 * task.share_done:.0f} %",
                _best(task, "" if metric else labels.get(task.name, "")),
                _span(task.planned_start, task.planned_end),
                (expected if actual[0] is not None else "") + _span(*actual),
            )
        )
    columns = [_COLUMNS[heading] for heading in headings]
    named = [replace(column, heading=f"best {metric}") if column.heading == "best" else column for column in columns]
    return fitted_table(named if metric else columns, rows, width=width)


def _where(task: TaskView) -> str:
    if not task.device:
        return "-"
    return f"{task.device}, with {', '.join(task.shares_with)}" if task.shares_with else task.device


def _best(task: TaskView, label: str) -> str:
    value = format_value(task.best_value)
    return f"{label} {value}" if label and task.best_value is not None else value


_COLUMNS = {
    column.heading: column
    for column in (
        TableColumn(heading="task", justify="left", least_width=16, wraps=True),
        TableColumn(heading="state", justify="left"),
        TableColumn(heading="priority", leave_out=4),
        TableColumn(heading="where", justify="left", leave_out=5),
        TableColumn(heading="trials", justify="left", least_width=10, wraps=True, leave_out=3),
        TableColumn(heading="steps"),
        TableColumn(heading="best"),
        TableColumn(heading="first planned", justify="left", leave_out=1),
        TableColumn(heading="actual", justify="left", leave_out=2),
    )
}


def _live_tables(progress: QueueProgress, width: int, height: int) -> list[Text | Table]:
    room = max(3, height - 9)
    # those that ended scroll by as notes
    open_first = sorted(progress.tasks, key=lambda task: task.state.is_final)[:room]
    shown = tuple(task for task in progress.tasks if task in open_first)
    table, left_out = task_table(replace(progress, tasks=shown), width=width)
    below = []
    if len(shown) < len(progress.tasks):
        below.append(f"and {len(progress.tasks) - len(shown)} more: cohort status shows all")
    if left_out:
        below.append(f"hidden: {left_out_text(left_out, elsewhere='cohort status --json has all')}")
    return [table, *(Text(line, style="dim") for line in below)]


# 30 seconds: several workers write their own logs as well
QUEUE_VIEW: View[QueueProgress] = View(line=queue_line, tables=_live_tables, phase=lambda _: "", interval_seconds=30.0)


def print_queue(status: QueueStatus, *, as_json: bool) -> None:
    """Print the state of a queue and of its tasks."""
    if as_json:
        print(json.dumps(queue_status_json(status), indent=2))
        return
    console = wide_console(180)
    progress = status.progress
    table, left_out = task_table(progress, width=console.width, metric_labels=status.metric_labels)
    console.print(table)
    facts = {"hidden": left_out_text(left_out, elsewhere="--json has all")} if left_out else {}
    facts |= {"queue": f"{_count_states(progress)}" + (f" ({status.holder})" if status.holder else "")}
    if status.holder and progress.end_seconds is not None:
        facts["left"] = f"about {format_duration(max(progress.end_seconds - progress.now_seconds, 0))}"
    planned = [task.planned_end for task in progress.tasks if task.planned_end is not None]
    ended = [task.actual_end for task in progress.tasks if task.actual_end is not None]
    if planned and ended and all(task.state.is_final for task in progress.tasks):
        facts["planned"] = f"all done after {format_duration(max(planned))} at worst, without early exit"
        facts["actual"] = f"{format_duration(max(ended))}, with {counted(progress.num_plans, 'plan')}"
    if any(task.state is TaskState.DONE for task in progress.tasks):
        facts["adapters"] = f"{status.directory}/TASK/best"
    if (status.directory / "report.html").exists():
        facts["report"] = f"{status.directory}/report.html"
    print_facts(console, facts)
    for task in progress.tasks:
        if task.state in (TaskState.FAILED, TaskState.HELD):
            console.print(Text(f"\n{task.name} {task.state.value}: {task.reason}"), soft_wrap=True)
    for name in status.worse:
        adapter = status.directory / name / "best"
        console.print(
            Text(f"\n{name}: no trial beats the base model; the adapter in {adapter} is worse than none"),
            soft_wrap=True,
        )
    if not status.holder and any(not task.state.is_final for task in progress.tasks):
        console.print(Text(f"\nto continue: cohort resume {status.directory}"), soft_wrap=True)


def print_unstarted(unstarted: UnstartedTask, *, as_json: bool) -> None:
    """Print the state of a queued task whose run has not begun, and what it waits for."""
    if as_json:
        print(json.dumps(unstarted_task_json(unstarted), indent=2))
        return
    task = unstarted.task
    facts = {"task": task.name, "state": f"{task.state.value}, its run has not begun"}
    if task.state is TaskState.RUNNING:
        facts["state"] = f"beginning on {task.device}" if task.device else "beginning"
    if task.reason:
        facts["reason"] = task.reason
    if unstarted.waits_for:
        facts["waits for"] = unstarted.waits_for
    if unstarted.begins_in_seconds is not None and task.state is TaskState.QUEUED:
        begins = (
            f"in about {format_duration(unstarted.begins_in_seconds)}" if unstarted.begins_in_seconds else "at once"
        )
        facts["expected"] = f"to begin {begins}, or earlier if other tasks exit early"
    if task.expected_seconds is not None and not task.state.is_final:
        facts["takes"] = f"about {format_duration(task.expected_seconds)}, without early exit"
    if unstarted.ends_in_seconds is not None and not task.state.is_final:
        facts["left"] = f"about {format_duration(unstarted.ends_in_seconds)} until it ends, without early exit"
    if task.priority:
        facts["priority"] = str(task.priority)
    facts["queue"] = f"{unstarted.queue}" + (f" ({unstarted.holder})" if unstarted.holder else "")
    console = Console(highlight=False, soft_wrap=True)
    print_facts(console, facts)
    if not unstarted.holder and not task.state.is_final:
        console.print(Text(f"\nto continue: cohort resume {unstarted.queue}"), soft_wrap=True)
