"""A study of Optuna that a user keeps: results of a run are written to it, and earlier ones are read from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.tuning.objective_metric import ObjectiveMetric
from cohort.tuning.parameters import Choice, MultipleOf, Range, Value
from cohort.tuning.samplers.sampler import EarlierResult
from cohort.tuning.space import SearchSpace

__all__ = ["StudyEntry", "earlier_results", "require_study", "write_to_study"]

_RUN, _TRIAL = "cohort_run", "cohort_trial"


@dataclass(frozen=True, kw_only=True)
class StudyEntry:
    """A trial that has ended, as a study holds it.

    Attributes:
        parameters: Its hyperparameters by name.
        value: The task's metric at its best checkpoint; None if nothing finite was measured.
        intermediate: The metric by step.
        notes: What else is known of it (status, reason, steps, ...).
    """

    trial_id: int
    parameters: Mapping[str, Any]
    value: float | None
    intermediate: Mapping[int, float] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


def require_study(study: Any, *, metric: ObjectiveMetric) -> None:
    """Refuse what is no study, or one of another objective.

    Raises:
        InputError: it is not an ``optuna.Study``, has several objectives, or goes the other way.
    """
    # by name: optuna is an extra, and may not be installed
    names = [kind.__name__ for kind in type(study).__mro__]
    if "Study" not in names or not hasattr(study, "add_trial"):
        hint = "Write study=optuna.create_study(...), or optuna.load_study(...)."
        found = f"a value of type {type(study).__name__}"
        raise InputError(Problem(where="study", found=found, allowed="an optuna.Study", hint=hint))
    wanted = "maximize" if metric.maximize else "minimize"
    directions = [direction.name.lower() for direction in study.directions]
    if directions != [wanted]:
        raise InputError(
            Problem(
                where="study",
                found=f"a study that goes to {' and '.join(directions)}",
                allowed=f"one objective, {wanted}: the task's metric is {metric.name}",
                hint=f"Write optuna.create_study(direction={wanted!r}).",
            )
        )


def earlier_results(study: Any, space: SearchSpace, *, run_id: str | None = None) -> tuple[EarlierResult, ...]:
    """Return the finished trials of a study whose values the space can have, in the study's order.

    Args:
        run_id: The run that goes on, whose own trials are no earlier ones.
    """
    found = []
    drawn = space.drawn()
    for trial in study.get_trials(deepcopy=False):
        is_own = run_id is not None and trial.user_attrs.get(_RUN) == run_id
        if is_own or trial.state.name != "COMPLETE" or not math.isfinite(trial.value):
            continue
        # a value that follows another one (2r) is no parameter of the study, and noted with the trial
        known = {**trial.user_attrs, **trial.params}
        if set(drawn) <= set(known):
            found.append(EarlierResult(values={name: known[name] for name in drawn}, value=trial.value))
    return tuple(found)


def write_to_study(study: Any, entries: Sequence[StudyEntry], *, space: SearchSpace, run_id: str) -> None:
    """Add the trials that the study does not have yet; of a run that was resumed it may have some.

    A trial is COMPLETE if anything finite was measured, also where a rule stopped it: its best checkpoint competes for
    the result. Else it is FAIL.
    """
    known = {
        trial.user_attrs.get(_TRIAL)
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs.get(_RUN) == run_id
    }
    new = [entry for entry in entries if entry.trial_id not in known]
    if not new:
        return
    # optuna is there: the study is one of its own
    import optuna

    make: Callable[..., Any] = optuna.trial.create_trial
    states = optuna.trial.TrialState
    distributions = _distributions(space, optuna.distributions)
    for entry in new:
        # a value outside of the space, of a trial that a person added, would make the study refuse the whole trial
        mine = {name: kind for name, kind in distributions.items() if _fits(entry.parameters.get(name), kind)}
        rest = {name: value for name, value in entry.parameters.items() if name not in mine}
        study.add_trial(
            make(
                state=states.FAIL if entry.value is None else states.COMPLETE,
                value=entry.value,
                params={name: entry.parameters[name] for name in mine},
                distributions=mine,
                intermediate_values=dict(entry.intermediate),
                user_attrs={_RUN: run_id, _TRIAL: entry.trial_id, **entry.notes, **rest},
            )
        )


def _fits(value: Value | None, distribution: Any) -> bool:
    if value is None:
        return False
    try:
        # optuna has no public question for it, and answers only by an error at the end
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, KeyError):
        return False


def _distributions(space: SearchSpace, kinds: Any) -> dict[str, Any]:
    """Return a distribution for each drawn hyperparameter, with its own values rather than their places in a list."""
    built: dict[str, Any] = {}
    for name, parameter in space.drawn().items():
        if isinstance(parameter, Choice):
            plain = tuple(value for value in parameter.values if not isinstance(value, MultipleOf))
            # a multiple of r has other values in each trial: it is noted with the trial
            if len(plain) == len(parameter.values):
                built[name] = kinds.CategoricalDistribution(plain)
        elif isinstance(parameter, Range):
            kind = kinds.IntDistribution if parameter.integer else kinds.FloatDistribution
            convert = int if parameter.integer else float
            built[name] = kind(convert(parameter.min), convert(parameter.max), log=parameter.log)
    return built
