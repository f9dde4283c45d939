"""The page of a queue: what the first plan of each task expected, and what happened instead.

Tasks that shared a GPU stand one below the other. The time axis leaves out pauses without a dispatcher: over a stopped
weekend no task waited for a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cohort.core.durable_files import write_text
from cohort.report.drawings.gantt import Pause, TaskBar
from cohort.report.gantt_page import planned_against_actual_page
from cohort.task_queue.last_seen import last_seen_seconds
from cohort.task_queue.records import QueuedTask, RunStretch, TaskDecision, TaskState
from cohort.task_queue.status import QueueStatus, read_queue_status
from cohort.task_queue.store import open_queue, queue_holder

__all__ = ["write_queue_page"]

# by how a stretch ended: the shape of its mark and its words; any other outcome is one of the many ways to be cut short
_ENDINGS = {
    "done": ("circle", "done"),
    "failed": ("up", "failed"),
    "stopped": ("square", "stopped, its state saved"),
    "could not share": ("square", "waited for a GPU of its own"),
    "the dispatcher ended": ("square", "stopped, its state saved"),
    "": ("diamond", "still running"),
}
_CUT_SHORT = ("down", "cut short: its worker, slot or dispatcher was lost")
# a queue that is resumed at once was not paused
_LEAST_PAUSE_SECONDS = 1.0


def write_queue_page(directory: Path, *, reload_seconds: float | None = None) -> Path:
    """Write ``report.html`` of the queue in ``directory``, whole or not at all; return its path.

    Args:
        reload_seconds: After this time an open page loads itself again.

    Raises:
        InputError: there is no queue.
        StorageFullError: no space is left.
    """
    is_worked_off = queue_holder(directory) is not None
    with open_queue(directory) as store:
        tasks, stretches, decisions = store.tasks(), store.stretches(), store.decisions()
        facts = store.facts()
    absences = list(_absences(decisions))
    worked = _working_time(absences)
    # without a dispatcher the queue's time ended when one was last seen
    now = last_seen_seconds(facts, tasks, directory=directory) or 0.0
    if is_worked_off and facts.began_at is not None:
        now = (datetime.now(UTC) - facts.began_at).total_seconds()
    actual = [_ran(gang, worked, now=now, mates=_mates(gang, stretches)) for gang in _gangs(stretches)]
    planned = list(_planned(tasks, decisions, worked))
    path = directory / "report.html"
    reports = {task.name: f"{task.name}/report.html" for task in tasks}
    page = planned_against_actual_page(
        planned,
        actual,
        gpu_ids=sorted({slot for bar in (*planned, *actual) for slot in bar.gpu_ids}),
        states={task.name: _state(task, is_worked_off=is_worked_off) for task in tasks},
        results=dict(_results(read_queue_status(directory))),
        # relative, so that a copy of the whole directory keeps them
        links={name: link for name, link in reports.items() if (directory / link).is_file()},
        title=f"Queue {directory.name}",
        device="slot",
        endings=list(dict.fromkeys(_ENDINGS.get(stretch.outcome, _CUT_SHORT) for stretch in stretches)),
        pauses=[Pause(at_seconds=worked(start), seconds=end - start) for start, end in absences],
        reload_seconds=reload_seconds,
    )
    write_text(path, page)
    return path


def _absences(decisions: Sequence[TaskDecision]) -> Iterator[tuple[float, float]]:
    """Yield from when to when there was no dispatcher, by the queue's clock."""
    for decision in decisions:
        since = decision.numbers.get("none_since_seconds") if decision.kind == "dispatcher" else None
        if since is not None and decision.seconds - since >= _LEAST_PAUSE_SECONDS:
            yield float(since), decision.seconds


def _working_time(absences: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Return the function from seconds of the queue's clock to seconds with a dispatcher."""

    def worked(seconds: float) -> float:
        return seconds - sum(max(0.0, min(seconds, end) - start) for start, end in absences)

    return worked


def _planned(
    tasks: Sequence[QueuedTask], decisions: Sequence[TaskDecision], worked: Callable[[float], float]
) -> Iterator[TaskBar]:
    """Yield the first plan of each task."""
    made: dict[str, tuple[float, Sequence[int]]] = {}
    for decision in decisions:
        for placement in decision.numbers["placements"] if decision.kind == "plan" else ():
            made.setdefault(placement["task"], (decision.seconds, placement["slots"]))
    for task in tasks:
        if task.planned_slot is None or task.planned_start is None or task.planned_end is None:
            continue
        # a plan knows of no pauses, so its times count on from when it was made
        at, slots = made.get(task.name, (0.0, (task.planned_slot,)))
        yield TaskBar(
            task=task.name,
            gpu_ids=tuple(slots),
            start_seconds=worked(at) + task.planned_start - at,
            end_seconds=worked(at) + task.planned_end - at,
            note="first plan, without early exit",
        )


def _gangs(stretches: Sequence[RunStretch]) -> list[list[RunStretch]]:
    """Return the stretches of each time that a task held slots: one for each slot."""
    gangs: dict[tuple[str, float], list[RunStretch]] = {}
    for stretch in stretches:
        gangs.setdefault((stretch.task, stretch.start_seconds), []).append(stretch)
    return list(gangs.values())


def _mates(gang: Sequence[RunStretch], stretches: Sequence[RunStretch]) -> list[str]:
    """Return the tasks that trained on the same slot at the same time."""
    own = gang[0]
    end = float("inf") if own.end_seconds is None else own.end_seconds
    found = [
        other.task
        for other in stretches
        if other.task != own.task
        and other.slot_id == own.slot_id
        and other.start_seconds < end
        and (other.end_seconds is None or other.end_seconds > own.start_seconds)
    ]
    return list(dict.fromkeys(found))


def _ran(
    gang: Sequence[RunStretch], worked: Callable[[float], float], *, now: float, mates: Sequence[str] = ()
) -> TaskBar:
    stretch = gang[0]
    end = max(now, stretch.start_seconds) if stretch.end_seconds is None else stretch.end_seconds
    shape, words = _ENDINGS.get(stretch.outcome, _CUT_SHORT)
    where = ", ".join(each.device for each in gang) + (f", shared with {', '.join(mates)}" if mates else "")
    return TaskBar(
        task=stretch.task,
        gpu_ids=tuple(each.slot_id for each in gang),
        start_seconds=worked(stretch.start_seconds),
        end_seconds=worked(end),
        note=f"{where}: {stretch.outcome or words}",
        ending=shape,
    )


def _results(status: QueueStatus) -> Iterator[tuple[str, str]]:
    """Yield the best of each task's metric, in words; it may be that of a run that still trains."""
    for task in status.progress.tasks:
        if task.best_value is not None and task.name in status.metric_labels:
            yield task.name, f"{status.metric_labels[task.name]} {task.best_value:.4g}"


def _state(task: QueuedTask, *, is_worked_off: bool) -> str:
    # a dispatcher that was killed leaves tasks as running
    state = TaskState.QUEUED if task.state is TaskState.RUNNING and not is_worked_off else task.state
    return f"{state.value}: {task.reason}" if task.reason else state.value
