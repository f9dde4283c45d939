"""The trials a task proposes: all at once, or some later, once a sampler can learn from results."""

from __future__ import annotations

import math
from dataclasses import replace

from cohort.adapters.initial_adapter import AdapterStart
from cohort.adapters.modules_to_save.saved_modules import SavedModules
from cohort.data.tokenised import TokenisedRows
from cohort.prepare.adapters.adapter_specs import largest_adapter
from cohort.prepare.trials import PlannedTrial, objective_metric, plan_trial
from cohort.tasks.task_file import TaskFile
from cohort.training.trial import TrialSpec
from cohort.tuning.evaluation_times import EvaluationTimes, evaluated_at
from cohort.tuning.parameters import Choice, Conditional, Constant, MultipleOf, Parameter, Range
from cohort.tuning.samplers import build_sampler, sampler_kind
from cohort.tuning.search_feedback import SearchFeedback
from cohort.tuning.study import Study

__all__ = ["TrialProposals", "num_first_trials"]

# TPE draws at random until it has seen this many results, as in Optuna: it cannot learn from fewer
_FEWEST_AT_FIRST = 10
# the rest is proposed one by one with what ended trials taught
_SHARE_AT_FIRST = 1 / 3


def num_first_trials(task: TaskFile) -> int | None:
    """Return how many trials a task proposes at the start, if its space is large enough; None for all."""
    search = task.search
    if search.first_trials is not None:
        return search.first_trials
    if sampler_kind(search.sampler).learns or search.max_gpu_hours is not None:
        return max(_FEWEST_AT_FIRST, math.ceil(_SHARE_AT_FIRST * search.trials))
    return None


class TrialProposals:
    """Proposes a task's trials in a fixed order that follows from the results so far.

    Grid proposes all trials at once, and so does random unless the task says otherwise. TPE proposes a third of them
    (at least ten), then one for each trial that ends, knowing the best value that each had at its latest comparison or
    at its end. A budget of time on the device ends proposing. The same results in the same order lead to the same
    proposals, which is how a resumed run has them again.

    Attributes:
        first: The trials proposed before any has ended.
        times: When trials are evaluated; None as the task says.
        ended_by_time: A note that the budget of time, or a callback, has ended the search; None while none has.
    """

    def __init__(
        self,
        task: TaskFile,
        rows: TokenisedRows,
        *,
        saved: SavedModules | None = None,
        start: AdapterStart | None = None,
    ) -> None:
        """Propose the first trials.

        Args:
            rows: Training rows; they decide how many steps an epoch has.
            saved, start: As :func:`~cohort.prepare.adapters.adapter_specs.adapter_spec` takes them.

        Raises:
            InputError: the search space cannot be listed or sampled.
        """
        self._task, self._rows, self._saved, self._start = task, rows, saved, start
        self.times: EvaluationTimes | None = None
        self._num_proposed = 0
        self._sampler = build_sampler(
            task.search.sampler,
            task.search_space(),
            trials=task.search.trials,
            seed=task.training.seed,
            maximize=objective_metric(task).maximize,
            earlier=task.search.earlier_results,
        )
        self._feedback = SearchFeedback(self._sampler, metric=objective_metric(task))
        self._is_exhausted = False
        self.ended_by_time: str | None = None
        at_first = num_first_trials(task)
        # 2**31: more than any space holds, so that a sampler that lists its space gives all of it
        self.first: tuple[PlannedTrial, ...] = self._propose(2**31 if at_first is None else at_first)

    def evaluate_at(self, times: EvaluationTimes | None) -> None:
        """Let all trials, those to come as well, be evaluated at ``times``."""
        if times is not None:
            self.times = times
            self.first = tuple(replace(t, candidate=evaluated_at(t.candidate, times)) for t in self.first)

    def after(self, study: Study, *, gpu_seconds: float = 0.0) -> tuple[PlannedTrial, ...]:
        """Return a new trial for each that has ended since the last call, as far as the budgets go.

        Args:
            gpu_seconds: Time on the device so far.
        """
        hours = self._task.search.max_gpu_hours
        if not self._is_exhausted and hours is not None and gpu_seconds >= 3600 * hours:
            self._is_exhausted = True
            self.ended_by_time = (
                f"{self._num_proposed} of {self._task.search.trials} trials were proposed when search.max_gpu_hours "
                f"({hours:g}) was used up"
            )
        if self._is_exhausted:
            return ()
        return self._propose(self._feedback.take_in(study.decisions))

    def end(self, note: str) -> None:
        """Propose no more trials."""
        self._is_exhausted, self.ended_by_time = True, note

    @property
    def is_complete(self) -> bool:
        """Whether all trials have been proposed."""
        return self._is_exhausted

    @property
    def most_trials(self) -> int:
        """More than the number of any trial that is or will be proposed."""
        takes_all = sampler_kind(self._task.search.sampler).takes_whole_space
        return len(self.first) if takes_all else max(len(self.first), self._task.search.trials)

    def largest(self) -> tuple[TrialSpec, ...]:
        """Return the first trials, each with the largest rank that any later one may have."""
        # memory is planned before a sampler has chosen the later trials, and the bank cannot grow
        specs = tuple(trial.spec for trial in self.first)
        # no later trial can have a larger rank than those there are
        if self._is_exhausted:
            return specs
        rank = max(*(spec.adapter.r for spec in specs), _largest_rank(self._task), 1)
        return tuple(replace(spec, adapter=largest_adapter(self._task, spec.adapter, r=rank)) for spec in specs)

    def _propose(self, num: int) -> tuple[PlannedTrial, ...]:
        trials = tuple(
            plan_trial(
                self._task,
                number,
                configuration,
                rows=self._rows,
                times=self.times,
                saved=self._saved,
                start=self._start,
            )
            for number, configuration in enumerate(self._sampler.propose(num), start=self._num_proposed)
        )
        self._num_proposed += len(trials)
        search = self._task.search
        is_whole = sampler_kind(search.sampler).takes_whole_space
        is_budget_used = is_whole or self._num_proposed >= search.trials
        # fewer than asked for: the space holds no more
        self._is_exhausted = is_budget_used or len(trials) < num
        return trials


def _largest_rank(task: TaskFile) -> int:
    parameter = task.search_space().parameters["r"]
    if isinstance(parameter, Conditional):
        rest = parameter.otherwise if isinstance(parameter.otherwise, int) else 1
        return max(rest, _largest_value(parameter.parameter))
    return _largest_value(parameter)


def _largest_value(parameter: Parameter) -> int:
    if isinstance(parameter, Choice):
        return max(int(value) for value in parameter.values if not isinstance(value, MultipleOf))
    if isinstance(parameter, Range):
        return int(parameter.max)
    return int(parameter.value) if isinstance(parameter, Constant) else 1
