"""Which trials a task proposes, and when: all at once, or some later, once a sampler can learn from results."""

from __future__ import annotations

import math
from dataclasses import replace

from cohort.engine.task_file_model import TaskFile
from cohort.engine.trial_planning import PlannedTrial, plan_trial
from cohort.training.trial import TrialSpec
from cohort.tuning.decisions import DecisionKind
from cohort.tuning.samplers import SamplerName, build_sampler
from cohort.tuning.space import Choice, Constant, MultipleOf, Range
from cohort.tuning.study import Study

__all__ = ["TrialProposals"]

# TPE draws at random until it has seen so many results (Optuna's default as well): fewer would teach it nothing
_FEWEST_AT_FIRST = 10
_SHARE_AT_FIRST = 1 / 3


class TrialProposals:
    """Proposes a task's trials in a fixed order that follows from the results so far.

    Grid and random propose all trials at once. TPE proposes a third of them (at least ten), then one for each trial
    that ends, knowing the best value of each that ended before. The same results in the same order lead to the same
    proposals, which is how a resumed run has them again.
    """

    def __init__(self, task: TaskFile, *, num_rows: int, num_tokens: int) -> None:
        """Begin.

        Args:
            task: The task.
            num_rows: Training rows.
            num_tokens: Tokens of all training rows together.

        Raises:
            InputError: the search space cannot be listed or sampled.
        """
        self._task, self._num_rows, self._num_tokens = task, num_rows, num_tokens
        self._name = SamplerName(task.search.sampler)
        self._sampler = build_sampler(
            self._name,
            task.search_space(),
            trials=task.search.trials,
            seed=task.training.seed,
            maximize=task.evaluation.metric != "loss",
        )
        self._num_ended = 0
        at_first = max(_FEWEST_AT_FIRST, math.ceil(_SHARE_AT_FIRST * task.search.trials))
        self.first: tuple[PlannedTrial, ...] = self._propose(at_first if self._name is SamplerName.TPE else 2**31)

    def after(self, study: Study) -> tuple[PlannedTrial, ...]:
        """Return a new trial for each that has ended since the last call, as far as the budget goes."""
        if self._name is not SamplerName.TPE:
            return ()
        ended = [d.trial_id for d in study.decisions if d.kind in (DecisionKind.STOP, DecisionKind.FINISH)]
        new = ended[self._num_ended :]
        self._num_ended = len(ended)
        for trial_id in new:
            best = study.best_of(trial_id)
            self._sampler.tell(trial_id, None if best is None else best.value)
        return self._propose(len(new))

    def largest(self) -> tuple[TrialSpec, ...]:
        """Return the first trials, each with the largest rank that any later one may have: what room is made for."""
        specs = tuple(trial.spec for trial in self.first)
        if self._name is not SamplerName.TPE:
            return specs
        rank = max(*(spec.adapter.r for spec in specs), _largest_rank(self._task), 1)
        return tuple(replace(spec, adapter=replace(spec.adapter, r=rank)) for spec in specs)

    def _propose(self, num: int) -> tuple[PlannedTrial, ...]:
        return tuple(
            plan_trial(self._task, proposal, num_rows=self._num_rows, num_tokens=self._num_tokens)
            for proposal in self._sampler.propose(num)
        )


def _largest_rank(task: TaskFile) -> int:
    parameter = task.search_space().parameters["r"]
    if isinstance(parameter, Choice):
        return max(int(value) for value in parameter.values if not isinstance(value, MultipleOf))
    if isinstance(parameter, Range):
        return int(parameter.max)
    return int(parameter.value) if isinstance(parameter, Constant) else 1
