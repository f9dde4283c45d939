"""The hyperparameters of one trial that a person adds to a run: the same keys and bounds as in the task file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.core.input_values.nearest_value import keys_text, nearest_word
from cohort.core.setting_fields import Refusal
from cohort.core.source_location import Place, dotted
from cohort.tasks.hyperparameters import SEARCHABLE, key_of, parse_value
from cohort.tasks.other_names import own_word
from cohort.tasks.overrides import parse_overrides
from cohort.tasks.sections.objective_section import objective_value_refusals
from cohort.tasks.sections.schedule_checks import added_schedule_refusals
from cohort.tasks.task_file import TaskFile
from cohort.tuning.parameters import Configuration, Constant, MultipleOf, Value

__all__ = ["added_parameters", "default_values", "shown_values", "trial_values_of"]

# shown for every trial, together with the searched ones, since people compare adapters by them
_ALWAYS_SHOWN = ("learning_rate", "r", "lora_alpha", "batch_size")


def shown_values(task: TaskFile, values: Mapping[str, Value], *, also: Iterable[str] = ()) -> dict[str, Value]:
    """Return the hyperparameters that a trial's record shows, of all that it has: what is searched, and a few more.

    VeRA reads no ``lora_alpha``; a trial of VeRA shows it only where the task searches it for others.
    """
    names = dict.fromkeys((*task.search.space, *_ALWAYS_SHOWN, *also))
    if values.get("use_vera") and "lora_alpha" not in task.search.space:
        names.pop("lora_alpha")
    return {name: values[name] for name in names if name in values}


def default_values(task: TaskFile) -> Configuration:
    """Return the values that a user would train with if nothing were searched."""
    defaults = task.searchable_defaults()
    return {
        name: value.of(defaults[value.parameter]) if isinstance(value, MultipleOf) else value
        for name, value in defaults.items()
    }


def trial_values_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what ``--KEY VALUE`` arguments say of one trial, by hyperparameter; values are not checked yet.

    Raises:
        InputError: an argument is no option, has no value, or names a key that all trials of a run share.
    """
    values: dict[str, Any] = {}
    problems = []
    for override in parse_overrides(arguments, model=TaskFile, unknown=_unknown_option):
        name = str(override.path[-1])
        is_own = name in SEARCHABLE and override.path in (key_of(name), ("search", "space", name))
        if is_own:
            values[name] = override.value
        else:
            problems.append(_shared_key(dotted(override.path), where=Place(option=f"command line {override.option}")))
    if problems:
        raise InputError(problems)
    return values


def _unknown_option(option: str) -> Problem:
    word = option.removeprefix("--").replace("-", "_").rpartition(".")[2].lower()
    own = own_word(word)
    near = own if own in SEARCHABLE else nearest_word(word, SEARCHABLE)
    return Problem(
        where=Place(option="command line"),
        found=f"the unknown option {option}",
        allowed=f"hyperparameters: {keys_text(word, tuple(SEARCHABLE), meant=near)}",
        hint=f"Did you mean --{near}?" if near else "Write one of the hyperparameters.",
    )


def added_parameters(
    task: TaskFile, values: Mapping[str, Any], *, source: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """Return the hyperparameters of a new trial as the record shows them: all that its run searches or that were given.

    What is not given is that of ``source``, else the task's default. A value that the task writes as a multiple of
    another (``lora_alpha: 2r``) follows it, unless it is given.

    Args:
        values: By name, as YAML reads them.
        source: The recorded hyperparameters of the trial that is cloned.

    Raises:
        InputError: every value that may not be, and every key that is no hyperparameter.
    """
    parsed, problems = _parsed(task, values)
    if problems:
        raise InputError(problems)
    # later ones win: a clone has what its source had, not what the task says of others
    base: dict[str, Any] = {**task.searchable_defaults(), **_fixed_in_space(task), **(source or {})}
    for name, value in {**task.searchable_defaults(), **task.search.space}.items():
        # a clone follows its own r, not that of the trial it comes from
        if isinstance(value, MultipleOf) and value.parameter in parsed:
            base[name] = value
    base |= parsed
    plain: dict[str, Value] = {
        name: value.of(base[value.parameter]) if isinstance(value, MultipleOf) else value
        for name, value in base.items()
    }
    return shown_values(task, plain, also=(*(source or ()), *parsed))


def _parsed(task: TaskFile, values: Mapping[str, Any]) -> tuple[dict[str, Value | MultipleOf], list[Problem]]:
    parsed: dict[str, Value | MultipleOf] = {}
    problems = []
    for name, value in values.items():
        where = Place(option=f"--{name}")
        if name not in SEARCHABLE:
            problems.append(_shared_key(name, where=where))
            continue
        refusals = objective_value_refusals(task.objective.type, name, value)
        if refusals := [*refusals, *added_schedule_refusals(task, name, value)]:
            problems += [replace(refusal, at=()).problem(where) for refusal in refusals]
            continue
        # one value, not the list that a search takes
        kind = SEARCHABLE[name]
        kind = replace(kind, example=f"--{name} {kind.example.strip('[]').split(', ')[0]}")
        found = parse_value(value, kind, at=())
        if isinstance(found, Refusal):
            problems.append(found.problem(where))
        else:
            parsed[name] = found
    # with both, the steps would win without a word
    if "num_train_epochs" in parsed and task.training.max_steps is not None:
        problems.append(
            Problem(
                where=Place(option="--num_train_epochs"),
                found="epochs, but the steps of this run's trials are set by training.max_steps",
                allowed=f"{task.training.max_steps} steps for every trial",
                hint="Leave the option out.",
            )
        )
    return parsed, problems


def _fixed_in_space(task: TaskFile) -> dict[str, Value | MultipleOf]:
    """Return the keys of ``search.space`` that have one value for all trials."""
    fixed: dict[str, Value | MultipleOf] = {}
    for name, parameter in task.search.space.items():
        if isinstance(parameter, Constant):
            fixed[name] = parameter.value
        elif isinstance(parameter, MultipleOf):
            fixed[name] = parameter
    return fixed


def _shared_key(name: str, *, where: Place) -> Problem:
    return Problem(
        where=where,
        found=f"{name}, which is the same for all trials of a run",
        allowed=f"what a trial has of its own: {', '.join(SEARCHABLE)}",
        hint="Leave it out, or start a run with another task file.",
    )
