"""Evaluations that are made together before they are asked for one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cohort.core.events import Evaluated
from cohort.engine.train.isolation import is_run_wide

__all__ = ["Evaluator", "KnownEvaluations"]


# returns one event for each resident trial of a mapping (optimizer steps done, by trial id), in its order
Evaluator = Callable[[Mapping[int, int]], Sequence[Evaluated]]


class KnownEvaluations:
    """Satisfies :data:`Evaluator` with what :meth:`make` has found, and asks for the rest.

    Trials are due after different steps of a window. Their evaluations are recorded and decided about step by step, as
    without a window; made one after another, each would be a small pass for which the other ranks wait.
    """

    def __init__(self, evaluate: Evaluator) -> None:
        self._evaluate = evaluate
        self._known: dict[int, Evaluated] = {}

    def make(self, steps: Mapping[int, int]) -> None:
        """Evaluate resident trials, all at once, and forget what was known; an error of a trial comes again later.

        Raises:
            Exception: one that is no single trial's.
        """
        self._known = {}
        try:
            self._known = {event.trial_id: event for event in self._evaluate(steps)}
        except Exception as error:
            if is_run_wide(error):
                raise

    def __call__(self, steps: Mapping[int, int]) -> list[Evaluated]:
        """Return the evaluation of resident trials, in the order of ``steps``."""
        found = {trial_id: self._known.pop(trial_id) for trial_id in steps if trial_id in self._known}
        # one that was put back to an earlier state is evaluated where it is now
        found = {trial_id: event for trial_id, event in found.items() if event.step == steps[trial_id]}
        missing = {trial_id: step for trial_id, step in steps.items() if trial_id not in found}
        if missing:
            found |= {event.trial_id: event for event in self._evaluate(missing)}
        return [found[trial_id] for trial_id in steps]
