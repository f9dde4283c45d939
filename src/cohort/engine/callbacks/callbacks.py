"""The functions of the caller that a run calls between two steps: which they are, and whether they can be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

from cohort.core.errors import InputError, Problem
from cohort.engine.callbacks.callback_reports import EvaluationReport, StepReport, TrialEndReport

__all__ = ["Callbacks"]


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """The caller's functions; each is given one report and returns nothing.

    Raises:
        InputError: one cannot be called.
    """

    on_step: Callable[[StepReport], object] | None = None
    on_evaluation: Callable[[EvaluationReport], object] | None = None
    on_trial_end: Callable[[TrialEndReport], object] | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(
                where=name,
                found=found,
                allowed="a function of one report",
                hint=f"Write def {name}(report): ..., and give the function itself.",
            )
            for name, value in vars(self).items()
            if value is not None and (found := _what_is_wrong(value))
        ]
        if problems:
            raise InputError(problems)

    def and_at_trial_end(self, function: Callable[[TrialEndReport], None]) -> Callbacks:
        """Return the same callbacks with one more at the end of a trial, before the caller's own."""
        own = self.on_trial_end

        def both(report: TrialEndReport) -> object:
            function(report)
            return None if own is None else own(report)

        return replace(self, on_trial_end=both)

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


def _what_is_wrong(value: object) -> str | None:
    """Return why a value is no callback; None if it is one, as far as can be known before it is called."""
    if not callable(value):
        return f"{value!r}"
    # what a generator or a coroutine says would never run
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(value) for is_kind in kinds):
        return f"{value!r}, which is async or a generator"
    try:
        inspect.signature(value).bind(None)
    except TypeError:
        return f"{value!r}, which does not take one argument"
    except ValueError:
        # some built-in functions do not say what they take
        return None
    return None
