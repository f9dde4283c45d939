"""What ``training.lr_scheduler_kwargs`` and the schedules of a task's trials must agree on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from cohort.core.setting_fields import Refusal
from cohort.tasks.possible_values import possible_values
from cohort.training.schedules import LR_END, REQUIRED_OPTIONS, SCHEDULE_OPTIONS, Schedule

if TYPE_CHECKING:
    from cohort.tasks.task_file import TaskFile

__all__ = ["added_schedule_refusals", "schedule_refusals"]

_AT = ("training", "lr_scheduler_kwargs")
# what the hint writes where nothing is known of the task
_EXAMPLES = {"min_lr_rate": "0.1", "num_decay_steps": "20"}


def schedule_refusals(task: TaskFile) -> Iterator[Refusal]:
    """Yield the options that no schedule of the task reads, those that one needs, and rates that end above the peak."""
    schedules = [Schedule(str(name)) for name in possible_values(task, "lr_scheduler_type")]
    written = task.training.lr_scheduler_kwargs.options().written()
    for name in written:
        if not any(name in SCHEDULE_OPTIONS[schedule] for schedule in schedules):
            readers = [schedule for schedule in Schedule if name in SCHEDULE_OPTIONS[schedule]]
            # a schedule that also needs another option would only lead to the next error
            complete = [schedule for schedule in readers if not any(_missing(schedule, written))]
            yield Refusal(
                found=f"{name} with lr_scheduler_type: {', '.join(schedules)}, which does not read it",
                allowed=f"{name} with {', '.join(schedule.value for schedule in readers)}",
                hint=f"Remove {name}, or write lr_scheduler_type: {(complete or readers)[-1]}.",
                at=(*_AT, name),
            )
    for schedule in schedules:
        yield from _missing(schedule, written)
    if Schedule.POLYNOMIAL in schedules:
        end = float(written.get("lr_end", LR_END))
        least = min(float(rate) for rate in possible_values(task, "learning_rate"))
        if least <= end:
            # as it was written: 1000000 and not 1e+06
            found = f"lr_end {end!r}".removesuffix(".0") + ("" if "lr_end" in written else " (the default)")
            yield Refusal(
                found=f"{found} with learning_rate {least:g}",
                allowed="lr_end below every learning rate, as transformers has it",
                hint=f"Write lr_end: {least / 10:g}.",
                at=(*_AT, "lr_end") if "lr_end" in written else _AT,
            )


def added_schedule_refusals(task: TaskFile, name: str, value: object) -> list[Refusal]:
    """Return why a trial that is added to a run cannot have a schedule: its options are the run's."""
    if name != "lr_scheduler_type" or value not in list(Schedule):
        return []
    return list(_missing(Schedule(str(value)), task.training.lr_scheduler_kwargs.options().written()))


def _missing(schedule: Schedule, written: Collection[str]) -> Iterator[Refusal]:
    needed = REQUIRED_OPTIONS.get(schedule, ())
    if needed and not any(name in written for name in needed):
        yield Refusal(
            found=f"lr_scheduler_type: {schedule} without {' or '.join(needed)}",
            allowed=f"{schedule} with {' or '.join(needed)} in training.lr_scheduler_kwargs",
            hint=f"Write lr_scheduler_kwargs: {{{needed[0]}: {_EXAMPLES[needed[0]]}}}.",
            at=_AT,
        )
