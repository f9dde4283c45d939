"""What an objective and the rest of a task must agree on: searched values, batch sizes, the metric that chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cohort.core.setting_fields import Refusal
from cohort.metrics import REWARD_METRICS
from cohort.tasks.sections.objective_section import (
    is_objective_value,
    own_value_refusals,
    unmet_conditions,
    unread_key,
)
from cohort.training.objectives.declaration import BatchComparison, compared_by
from cohort.tuning.parameters import Choice, Conditional, Constant, MultipleOf, Parameter, Range

if TYPE_CHECKING:
    from cohort.tasks.task_file import TaskFile

__all__ = ["objective_refusals"]

# a batch of one has no other row to compare with
_LEAST_COMPARED = 2


def objective_refusals(task: TaskFile) -> Iterator[Refusal]:
    """Yield what does not fit the task's objective; ``at`` is the key."""
    objective, space, declared = task.objective.type, task.search.space, task.objective.declared
    for name in (name for name in space if is_objective_value(name) and name not in declared.values):
        yield replace(unread_key(name, objective=objective), at=("search", "space", name))
    values = {name: _values(space[name]) if name in space else [value] for name, value in task.objective.values.items()}
    for name in (name for name in space if name in declared.values):
        yield from own_value_refusals(name, values[name], objective=objective, at=("search", "space", name))
    for name, value in declared.values.items():
        searched = space.get(name)
        if searched is not None and not isinstance(searched, Conditional):
            yield from unmet_conditions(name, objective=objective, values=values, at=("search", "space", name))
        elif searched is None and values[name] != [declared.default(name)]:
            # what the section alone says is checked where the section is read
            found = {other: values[other] for other in value.only_with if other in space}
            yield from unmet_conditions(name, objective=objective, values=found, at=("objective", name))
    if (batch := declared.compares_batch) is not None and all(
        set(values[key]) & set(allowed) for key, allowed in batch.only_with.items()
    ):
        yield from _small_batches(task, batch)
    for key, names in (("metric", [task.evaluation.metric]), ("metrics", task.evaluation.metrics)):
        for name in (name for name in names if name in REWARD_METRICS and name not in declared.measures):
            yield Refusal(
                found=f"{name} with {objective}, which compares no answers",
                allowed=f"{name} with {compared_by(name)}",
                hint="Write metric: loss." if key == "metric" else f"Remove {name}.",
                at=("evaluation", key),
            )


def _small_batches(task: TaskFile, batch: BatchComparison) -> Iterator[Refusal]:
    searched = task.search.space.get("batch_size")
    sizes = [task.training.batch_size] if searched is None else _values(searched)
    if any(isinstance(size, int | float) and size < _LEAST_COMPARED for size in sizes):
        yield Refusal(
            found=f"batch_size 1 with {task.objective.type}, {batch.why}",
            allowed=f"at least {_LEAST_COMPARED} rows",
            hint=f"Raise batch_size, or write objective: {batch.instead}.",
            at=("training", "batch_size") if searched is None else ("search", "space", "batch_size"),
        )


def _values(parameter: Parameter) -> list[Any]:
    """Return the values that a parameter can have; of a range its least."""
    if isinstance(parameter, Conditional):
        return _values(parameter.parameter)
    if isinstance(parameter, Choice):
        return [value for value in parameter.values if not isinstance(value, MultipleOf)]
    if isinstance(parameter, Range):
        return [parameter.min]
    return [parameter.value] if isinstance(parameter, Constant) else []
