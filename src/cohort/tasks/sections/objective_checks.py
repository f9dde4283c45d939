"""What an objective and the rest of a task must agree on: searched values, batch sizes, the metric that chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cohort.core.setting_fields import Refusal
from cohort.data.settings import RowReading
from cohort.metrics import REWARD_METRICS
from cohort.tasks.hyperparameters import SECTION_OF
from cohort.tasks.sections.objective_keys import LOSS_TYPES, OBJECTIVE_VALUES
from cohort.tasks.sections.objective_section import loss_type_refusals, smoothing_refusals, unread_key
from cohort.tuning.parameters import Choice, Conditional, Constant, MultipleOf, Parameter, Range

if TYPE_CHECKING:
    from cohort.tasks.task_file import TaskFile

__all__ = ["objective_refusals"]

# a batch of one has no other answer to mismatch
_LEAST_KTO_BATCH = 2


def objective_refusals(task: TaskFile) -> Iterator[Refusal]:
    """Yield what does not fit the task's objective; ``at`` is the key."""
    objective, space = task.objective.type, task.search.space
    read = OBJECTIVE_VALUES[objective]
    unread = [name for name in space if SECTION_OF[name] == "objective" and name not in read]
    for name in unread:
        yield replace(unread_key(name, objective=objective), at=("search", "space", name))
    kinds = _values(space["loss_type"]) if "loss_type" in space else [task.objective.values.get("loss_type")]
    if "loss_type" in space and "loss_type" in read:
        yield from loss_type_refusals(kinds, objective=objective, at=("search", "space", "loss_type"))
    if "label_smoothing" in read and LOSS_TYPES.get(objective):
        searched = space.get("label_smoothing")
        if searched is not None and not isinstance(searched, Conditional):
            yield from smoothing_refusals(kinds, at=("search", "space", "label_smoothing"))
        elif searched is None and task.objective.values["label_smoothing"] and "loss_type" in space:
            yield from smoothing_refusals(kinds, at=("objective", "label_smoothing"))
    if objective == "kto" and "kto" in kinds:
        yield from _small_batches(task)
    if task.objective.reads is RowReading.ANSWERS:
        for key, names in (("metric", [task.evaluation.metric]), ("metrics", task.evaluation.metrics)):
            for name in (name for name in names if name in REWARD_METRICS):
                yield Refusal(
                    found=f"{name} with {objective}, which compares no answers",
                    allowed=f"{name} with dpo, orpo, cpo, simpo or kto",
                    hint="Write metric: loss." if key == "metric" else f"Remove {name}.",
                    at=("evaluation", key),
                )


def _small_batches(task: TaskFile) -> Iterator[Refusal]:
    searched = task.search.space.get("batch_size")
    sizes = [task.training.batch_size] if searched is None else _values(searched)
    if any(isinstance(size, int | float) and size < _LEAST_KTO_BATCH for size in sizes):
        yield Refusal(
            found="batch_size 1 with kto, whose KL term compares each prompt with another row's answer",
            allowed=f"at least {_LEAST_KTO_BATCH} rows",
            hint="Raise batch_size, or write objective: {type: kto, loss_type: apo_zero_unpaired}.",
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
