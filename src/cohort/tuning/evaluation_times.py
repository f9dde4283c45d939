"""When trials are evaluated, and on how many rows, so that watching costs little of what training costs.

Cost model. A frozen linear of P weights costs 2 P FLOPs a token forward and 2 P for the gradient of its input; its
weights get no gradient, and the adapters' own products are of order r / width, which is neglected. So a training token
costs 4 P and an evaluated token 2 P: **an evaluated token is half a training token**. Recomputation would make
training cost more and the share smaller, so the bound errs on the safe side.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from cohort.core.setting_fields import check_settings, number, share, whole
from cohort.core.source_location import Place
from cohort.tuning.candidate import Candidate
from cohort.tuning.share_counts import ceil_share, exact_fraction

__all__ = [
    "EVALUATION_TOKEN_COST",
    "EvaluationPlan",
    "EvaluationSettings",
    "EvaluationTimes",
    "Workload",
    "evaluated_at",
    "plan_candidate",
    "plan_evaluation_rows",
    "warmup_steps",
]

EVALUATION_TOKEN_COST = 0.5
"""Cost of an evaluated token in training tokens: forward over forward + input gradient."""

# distances tried, in this order, where evaluating as often as the task says costs too much
_WIDER = (0.1, 0.2, 0.5)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How often and on how much trials are evaluated."""

    max_examples: int = whole(128, "most validation rows of one evaluation")
    warmup_evaluations: int = whole(3, "evaluations within early_exit.warmup_fraction", most=1000)
    every_fraction: float = share(0.05, "distance of the later evaluations", least=1e-4)
    max_cost_fraction: float = number(0.10, "rows and times are thinned to this share of training", minimum=None)
    finalists: int = whole(5, "best trials that all validation rows compare at the end; 0: none", minimum=0)
    finalists_cost_fraction: float = number(0.10, "finalists, then rows, are thinned to this share", minimum=None)

    def __post_init__(self) -> None:
        check_settings(self, where=Place(key=("evaluation",)))


def warmup_steps(planned_steps: int, *, fraction: float) -> int:
    """Return ``max(1, ceil(fraction * planned_steps))``."""
    return max(1, ceil_share(fraction, planned_steps))


@dataclass(frozen=True, kw_only=True)
class EvaluationTimes:
    """When the trials of a task are evaluated, in shares of their own training.

    Besides these times, always after the last step.

    Attributes:
        warmup_evaluations: Evaluations within the warm-up, its end included; 0 for none, where nothing is compared
            before a later time.
        every_fraction: Distance of the later ones; None for none.
        milestones: Further shares, in increasing order: those at which trials are compared.
    """

    warmup_evaluations: int
    every_fraction: float | None
    milestones: tuple[float, ...] = ()

    @classmethod
    def of(cls, settings: EvaluationSettings) -> Self:
        """Return the times as the user set them."""
        return cls(warmup_evaluations=settings.warmup_evaluations, every_fraction=settings.every_fraction)

    def steps(self, planned_steps: int, *, warmup: int) -> tuple[int, ...]:
        """Return the steps after which a trial is evaluated, increasing.

        ``warmup_evaluations`` spread over the warm-up, the last at its end (at each distinct step when warm-up is
        shorter), then every multiple of ``every_fraction`` of the planned steps, the milestones, and the last step.
        """
        # A set: in a short warm-up several of its evaluations fall on one step.
        count = self.warmup_evaluations
        steps = {ceil_share(Fraction(index, count), warmup) for index in range(1, count + 1)}
        shares = [exact_fraction(share) for share in self.milestones]
        if self.every_fraction is not None:
            every = exact_fraction(self.every_fraction)
            shares += [index * every for index in range(1, math.ceil(1 / every) + 1)]
        # Multiples of a rounded-up share may pass the end by one step.
        later = (min(ceil_share(share, planned_steps), planned_steps) for share in shares)
        first = warmup if count else 0
        return tuple(sorted({*steps, *(step for step in later if step > first), planned_steps}))

    def thinner(self, milestones: Sequence[Fraction], *, warmup_evaluations: int = 1) -> Iterator[EvaluationTimes]:
        """Yield times with fewer and fewer evaluations; the last have those at ``milestones`` alone.

        Args:
            milestones: Shares of the planned steps.
            warmup_evaluations: 1: at the warm-up's end; 0: none before the first of the others.
        """
        kept = tuple(sorted(float(share) for share in milestones))
        for every in (self.every_fraction, *_WIDER, None):
            if every is None or every == self.every_fraction or every > (self.every_fraction or 1):
                yield EvaluationTimes(warmup_evaluations=warmup_evaluations, every_fraction=every, milestones=kept)


def plan_candidate(
    trial_id: int,
    *,
    planned_steps: int,
    warmup_fraction: float,
    settings: EvaluationSettings,
    times: EvaluationTimes | None = None,
) -> Candidate:
    """Return the candidate with its warm-up and evaluation steps, at ``times`` if they are not as ``settings`` say."""
    warmup = warmup_steps(planned_steps, fraction=warmup_fraction)
    steps = (times or EvaluationTimes.of(settings)).steps(planned_steps, warmup=warmup)
    return Candidate(trial_id=trial_id, planned_steps=planned_steps, warmup_steps=warmup, evaluation_steps=steps)


def evaluated_at(candidate: Candidate, times: EvaluationTimes) -> Candidate:
    """Return the candidate with other evaluation steps."""
    steps = times.steps(candidate.planned_steps, warmup=candidate.warmup_steps)
    return replace(candidate, evaluation_steps=steps)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A candidate and the mean number of tokens that one of its optimizer steps trains on."""

    candidate: Candidate
    tokens_per_step: float


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """On how many rows and how often trials are evaluated, and what that is predicted to cost.

    Attributes:
        num_rows: Validation rows of one evaluation, the same for all trials of the task.
        cost_fraction: Predicted compute of all evaluations over that of all training.
        thinned: Whether the cost bound, not ``max_examples`` or the file, set ``num_rows``.
        times: When trials are evaluated; None as the settings say.
        num_evaluations: Most evaluations of a trial that trains to its end.
        num_wanted: The same without a bound on the cost.
    """

    num_rows: int
    cost_fraction: float
    thinned: bool
    times: EvaluationTimes | None = None
    num_evaluations: int = 0
    num_wanted: int = 0


def plan_evaluation_rows(
    workloads: Sequence[Workload],
    *,
    num_available: int,
    mean_tokens_per_row: float,
    settings: EvaluationSettings,
    kept_share: float = 1.0,
    kept_at: Callable[[float], float] | None = None,
    milestones: Sequence[Fraction] | None = None,
    evaluations_in_warmup: int = 1,
    enough_rows: int = 1,
    min_rows: int = 1,
) -> EvaluationPlan:
    """Thin the validation rows, then the times, then the rows again, to the evaluation budget.

    Args:
        workloads: All trials of the task, to be evaluated as ``settings`` say; they share rows and times.
        mean_tokens_per_row: Tokens that evaluating one row reads, generated ones included.
        kept_share: Share of the trials expected to go on after warm-up.
        kept_at: Share of the trials expected to reach a share of their steps.
        milestones: Shares of training that must be evaluated; None forbids to leave out any time.
        evaluations_in_warmup: Fewest evaluations up to the warm-up's end, 1 or 0.
        enough_rows: Rows are thinned to this number first. Only then are times left out.
        min_rows: Rows never thinned away, even where the bound is then broken (``cost_fraction`` says so).

    Raises:
        ValueError: there is nothing to train or to evaluate on.
    """
    if not workloads or num_available < 1 or mean_tokens_per_row <= 0:
        raise ValueError("an evaluation plan needs trials, validation rows and tokens in them")
    train_tokens = 0.0
    for workload in workloads:
        candidate = workload.candidate
        later_steps = candidate.planned_steps - candidate.warmup_steps
        train_tokens += workload.tokens_per_step * (candidate.warmup_steps + kept_share * later_steps)
    # All trials use the same rows: with different ones their losses could not be ranked.
    wanted = min(settings.max_examples, num_available)
    candidates = [workload.candidate for workload in workloads]
    found = _num_evaluations(candidates, kept_at=None, kept_share=kept_share)
    num_wanted = num_evaluations = max(len(candidate.evaluation_steps) for candidate in candidates)
    times: EvaluationTimes | None = None
    thinner: Iterator[EvaluationTimes] = iter(())
    if milestones is not None:
        thinner = EvaluationTimes.of(settings).thinner(milestones, warmup_evaluations=evaluations_in_warmup)
    if kept_at is not None:
        # trials of one batch size are evaluated at the same shares
        kept_at = functools.cache(kept_at)
    while True:
        cost_per_row = EVALUATION_TOKEN_COST * found * mean_tokens_per_row / train_tokens
        affordable = math.floor(settings.max_cost_fraction / cost_per_row)
        # A mean over few rows misleads every comparison, an evaluation that is left out only some detectors.
        if affordable >= min(enough_rows, wanted) or (fewer := next(thinner, None)) is None:
            break
        times = fewer
        planned = [evaluated_at(candidate, times) for candidate in candidates]
        found = _num_evaluations(planned, kept_at=kept_at, kept_share=kept_share)
        num_evaluations = max(len(candidate.evaluation_steps) for candidate in planned)
    # The bound gives way before the last rows do: with fewer than `min_rows` the ranks of trials would be noise.
    num_rows = max(1, min(wanted, max(affordable, min_rows)))
    return EvaluationPlan(
        num_rows=num_rows,
        cost_fraction=cost_per_row * num_rows,
        thinned=num_rows < wanted,
        times=times,
        num_evaluations=num_evaluations,
        num_wanted=num_wanted,
    )


def _num_evaluations(
    candidates: Sequence[Candidate], *, kept_share: float, kept_at: Callable[[float], float] | None
) -> float:
    """Return how many evaluations all trials are expected to have."""
    count = 0.0
    for candidate in candidates:
        if kept_at is not None:
            # those that reach a step have reached the one before it: a share rounded up to a step is still that share
            count += sum(kept_at((step - 1) / candidate.planned_steps) for step in candidate.evaluation_steps)
            continue
        # Trials are watched more closely within warm-up, so a sweep that stops most of them there affords fewer rows.
        num_warmup = sum(step <= candidate.warmup_steps for step in candidate.evaluation_steps)
        count += num_warmup + kept_share * (len(candidate.evaluation_steps) - num_warmup)
    return count
