"""What a hyperparameter may be in some trial of a task, and the optimizers whose states its trials need room for."""

from __future__ import annotations

from collections.abc import Iterator

from cohort.tasks.task_file import TaskFile
from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS
from cohort.tuning.parameters import Choice, Conditional, Constant, MultipleOf, Parameter, Range, Value

__all__ = ["possible_optimizers", "possible_values"]


def possible_values(task: TaskFile, name: str) -> tuple[Value, ...]:
    """Return what a hyperparameter may be in some trial of the task: of a range its bounds."""
    return tuple(_values(task.search_space().parameters[name]))


def possible_optimizers(task: TaskFile) -> tuple[str, ...]:
    """Return the optimizers that a trial of the task, or one that a person adds to its run, may have."""
    wanted = {str(name) for name in possible_values(task, "optim")}
    own = OPTIMIZER_DECLARATIONS.built_in()
    sharing = {entry.name for entry in own if not entry.has_own_states}
    found = (entry for name in wanted - sharing if (entry := OPTIMIZER_DECLARATIONS.find(name)) is not None)
    if any(entry.has_own_states for entry in found):
        return tuple(sorted(wanted))
    return tuple(sorted(wanted | sharing))


def _values(parameter: Parameter) -> Iterator[Value]:
    if isinstance(parameter, Conditional):
        yield from _values(parameter.parameter)
        if parameter.otherwise is not None and not isinstance(parameter.otherwise, MultipleOf):
            yield parameter.otherwise
    elif isinstance(parameter, Choice):
        yield from (value for value in parameter.values if not isinstance(value, MultipleOf))
    elif isinstance(parameter, Range):
        yield from (parameter.min, parameter.max)
    elif isinstance(parameter, Constant):
        yield parameter.value
