"""The page of a queue: what the first plan of each task expected, and what happened instead."""

from __future__ import annotations

from pathlib import Path

from cohort.core.durable_files import write_text
from cohort.engine.report.gantt import TaskBar
from cohort.engine.task_plan.page import planned_against_actual_page
from cohort.engine.task_queue.working import open_queue

__all__ = ["write_queue_page"]


def write_queue_page(directory: Path) -> Path:
    """Write ``report.html`` of the queue in ``directory``, whole or not at all; return its path.

    Raises:
        InputError: there is no queue.
        StorageFullError: no space is left.
    """
    with open_queue(directory) as store:
        tasks, stretches = store.tasks(), store.stretches()
    planned = [
        TaskBar(
            task=task.name,
            gpu_ids=(task.planned_slot,),
            start_seconds=task.planned_start,
            end_seconds=task.planned_end,
            note="first plan, without early exit",
        )
        for task in tasks
        if task.planned_slot is not None and task.planned_start is not None and task.planned_end is not None
    ]
    actual = [
        TaskBar(
            task=stretch.task,
            gpu_ids=(stretch.slot_id,),
            start_seconds=stretch.start_seconds,
            end_seconds=stretch.end_seconds,
            note=f"{stretch.device}: {stretch.outcome}",
        )
        for stretch in stretches
        if stretch.end_seconds is not None
    ]
    slots = sorted({slot for bar in (*planned, *actual) for slot in bar.gpu_ids})
    page = planned_against_actual_page(planned, actual, gpu_ids=slots, title=f"Queue {directory.name}", device="slot")
    path = directory / "report.html"
    write_text(path, page)
    return path
