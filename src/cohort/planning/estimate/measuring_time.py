"""Seconds of what is measured on held-out rows: the evaluations of trials, and the comparison at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cohort.data.loading import LoadedDataset
from cohort.prepare.evaluations import metric_tokens, ranked_rows, row_tokens
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.task_time import EvaluationWork, evaluation_seconds
from cohort.tasks.task_file import TaskFile
from cohort.tuning.evaluation_times import EVALUATION_TOKEN_COST, EvaluationPlan
from cohort.tuning.finals_plan import plan_finals

__all__ = ["MeasuringTime"]

# in addition to the finalists: the base model and the default configuration
_OTHERS = 2


@dataclass(frozen=True, kw_only=True)
class MeasuringTime:
    """What measuring trials takes on one device.

    Attributes:
        task: Says what is measured.
        works: A step of each trial.
        cost: What passes take.
        token_budget: Most tokens of an evaluation pass.
        rate: Seconds for an evaluated token as runs measured them, generation included; None where no run did.
    """

    task: TaskFile
    works: Mapping[int, AdapterWork]
    cost: StepCost
    token_budget: int
    rate: float | None

    def evaluations(self, data: LoadedDataset, plan: EvaluationPlan, *, counts: Mapping[int, int]) -> float:
        """Return the seconds of all evaluations; ``counts`` is their number by trial."""
        # choices are read as rows are
        tokens = plan.num_rows * (float(data.validation.lengths.mean()) + metric_tokens(self.task, data.validation))
        return self._seconds(counts, num_rows=plan.num_rows, num_tokens=tokens)

    def comparison(
        self, data: LoadedDataset, plan: EvaluationPlan, *, searched_tokens: float, free_tokens: float = 0.0
    ) -> float:
        """Return the seconds of the comparison at the end, on validation rows and on test rows.

        Args:
            searched_tokens: What the search costs, in tokens of training.
            free_tokens: Tokens that it may read whatever the search costs.
        """
        settings, seconds = self.task.evaluation_settings(), 0.0
        if settings.finalists:
            rows = data.all_validation
            tokens = row_tokens(self.task, rows)[ranked_rows(self.task, rows)]
            finals = plan_finals(
                num_candidates=len(self.works),
                num_others=_OTHERS,
                row_tokens=tokens.tolist(),
                num_evaluated=plan.num_rows,
                cost_tokens=searched_tokens,
                settings=settings,
                free_tokens=free_tokens,
            )
            read = float(np.sum(tokens[: finals.num_rows]))
            contenders = dict.fromkeys(range(finals.num_finalists + _OTHERS), 1)
            seconds += self._seconds(contenders, num_rows=finals.num_rows, num_tokens=read)
        if data.test is not None:
            tokens = row_tokens(self.task, data.test)
            contenders = dict.fromkeys(range(1 + _OTHERS), 1)
            seconds += self._seconds(contenders, num_rows=len(tokens), num_tokens=float(np.sum(tokens)))
        return seconds

    def searched_tokens(
        self, data: LoadedDataset, plan: EvaluationPlan, *, trained: float, num_evaluations: int
    ) -> float:
        """Return what a search costs in tokens of training, its ``num_evaluations`` included."""
        each = float(data.validation.lengths.mean()) + metric_tokens(self.task, data.validation)
        return trained + EVALUATION_TOKEN_COST * num_evaluations * plan.num_rows * each

    def _seconds(self, counts: Mapping[int, int], *, num_rows: int, num_tokens: float) -> float:
        """Return the seconds of measuring each trial ``counts`` times on rows of ``num_tokens``, generated ones too."""
        times = sum(counts.values())
        # a measured rate includes generation, which the analytic cost can only guess
        if self.rate is not None:
            return times * num_tokens * self.rate
        most = self.task.evaluation.max_new_tokens if self.task.evaluation.generates else 0
        first = self.works[0]
        evaluations = {
            number: EvaluationWork(
                num_evaluations=count, num_tokens=num_tokens - num_rows * most, num_sequences=num_rows
            )
            for number, count in counts.items()
        }
        # contenders are not known yet: their ranks are taken as those of the first trials
        works = {number: self.works.get(number, first) for number in counts}
        seconds = evaluation_seconds(evaluations, works=works, cost=self.cost, token_budget=self.token_budget)
        if most:
            # generated one by one: each new token of a batch of rows is a forward pass of one token a row
            each = 0.5 * self.cost.step_seconds([AdapterWork(r=1, num_tokens=num_rows, num_sequences=num_rows)])
            seconds += times * most * each
        return seconds
