"""What a search amounts to, in words: what constraints leave, what is searched only sometimes, when trials come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cohort.engine.prepare.proposals import num_first_trials
from cohort.tasks.task_file import TaskFile
from cohort.tuning.parameters import MOST_POINTS, Conditional
from cohort.tuning.samplers import sampler_kind

__all__ = ["search_notes"]


def search_notes(task: TaskFile) -> tuple[str, ...]:
    """Return what the user should know of constraints, conditions and budgets."""
    return (*_constraint_notes(task), *_condition_notes(task), *_budget_notes(task))


def _constraint_notes(task: TaskFile) -> Iterator[str]:
    space = task.search_space()
    size = space.size_bound()
    if space.constraints and size is not None and size <= MOST_POINTS:
        left = sum(1 for _ in space.configurations())
        every = sum(1 for _ in replace(space, constraints=()).configurations())
        yield f"search.constraints leave {left} of {every} configurations"


def _condition_notes(task: TaskFile) -> Iterator[str]:
    for name, parameter in task.search_space().parameters.items():
        if isinstance(parameter, Conditional):
            when = " and ".join(
                f"{other} is {' or '.join(map(str, values))}" for other, values in parameter.when.items()
            )
            yield f"search.space.{name} is searched when {when}; else {name} is {parameter.otherwise}"


def _budget_notes(task: TaskFile) -> Iterator[str]:
    search = task.search
    kind = sampler_kind(search.sampler)
    proposes_later = kind.learns or search.first_trials or search.max_gpu_hours
    if kind.takes_whole_space or not proposes_later:
        return
    size = task.search_space().size_bound()
    most = search.trials if size is None else min(search.trials, size)
    first = min(num_first_trials(task) or most, most)
    if first == most and search.max_gpu_hours is None:
        return
    until = "" if search.max_gpu_hours is None else f", none after {search.max_gpu_hours:g} h on the device"
    yield f"{first} trial{'' if first == 1 else 's'} at first, then one for each that ends, {most} at most{until}"
