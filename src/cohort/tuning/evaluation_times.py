"""When trials are evaluated, and on how many rows, so that watching costs little of what training costs.

Cost model. A frozen linear of P weights costs 2 P FLOPs a token forward and 2 P for the gradient of its input; its
weights get no gradient, and the adapters' own products are of order r / width, which is neglected. So a training token
costs 4 P and an evaluated token 2 P: **an evaluated token is half a training token**. Recomputation would make
training dearer and the share smaller, so the bound errs on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cohort.core.place import Place
from cohort.core.setting_fields import check_settings, number, share, whole
from cohort.tuning.candidate import Candidate
from cohort.tuning.shares import ceil_share, exact_fraction

__all__ = [
    "EVALUATION_TOKEN_COST",
    "EvaluationPlan",
    "EvaluationSettings",
    "Workload",
    "evaluation_steps",
    "plan_candidate",
    "plan_evaluation_rows",
    "warmup_steps",
]

EVALUATION_TOKEN_COST = 0.5
"""Cost of an evaluated token in training tokens: forward over forward + input gradient."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How often and on how much trials are evaluated."""

    max_examples: int = whole(128, "most validation rows of one evaluation")
    warmup_evaluations: int = whole(3, "evaluations within early_exit.warmup_fraction")
    every_fraction: float = share(0.05, "distance of the later evaluations")
    max_cost_fraction: float = number(0.10, "rows are thinned to this share of training, 16 are left", minimum=None)
    finalists: int = whole(5, "best trials that all validation rows compare at the end; 0: none", minimum=0)

    def __post_init__(self) -> None:
        check_settings(self, where=Place(key=("evaluation",)))


def warmup_steps(planned_steps: int, *, fraction: float) -> int:
    """Return ``max(1, ceil(fraction * planned_steps))``."""
    return max(1, ceil_share(fraction, planned_steps))


def evaluation_steps(planned_steps: int, *, warmup: int, settings: EvaluationSettings) -> tuple[int, ...]:
    """Return the steps after which a trial is evaluated, increasing.

    ``warmup_evaluations`` spread over the warm-up, the last at its end (at each distinct step when warm-up is
    shorter), then every multiple of ``every_fraction`` of the planned steps, and the last step.
    """
    # A set: in a short warm-up several of its evaluations fall on one step.
    count = settings.warmup_evaluations
    steps = {ceil_share(Fraction(index, count), warmup) for index in range(1, count + 1)}
    every = exact_fraction(settings.every_fraction)
    for index in range(1, math.ceil(1 / every) + 1):
        # Multiples of a rounded-up share may pass the end by one step.
        step = min(ceil_share(index * every, planned_steps), planned_steps)
        if step > warmup:
            steps.add(step)
    return tuple(sorted(steps | {planned_steps}))


def plan_candidate(
    trial_id: int, *, planned_steps: int, warmup_fraction: float, settings: EvaluationSettings
) -> Candidate:
    """Return the candidate with its warm-up and evaluation steps filled in."""
    warmup = warmup_steps(planned_steps, fraction=warmup_fraction)
    steps = evaluation_steps(planned_steps, warmup=warmup, settings=settings)
    return Candidate(trial_id=trial_id, planned_steps=planned_steps, warmup_steps=warmup, evaluation_steps=steps)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A candidate and the mean number of tokens that one of its optimizer steps trains on."""

    candidate: Candidate
    tokens_per_step: float


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """How many rows every evaluation uses and what that is predicted to cost.

    Attributes:
        num_rows: Validation rows of one evaluation, the same for all trials of the task.
        cost_fraction: Predicted compute of all evaluations over that of all training.
        thinned: Whether the cost bound, not ``max_examples`` or the file, set ``num_rows``.
    """

    num_rows: int
    cost_fraction: float
    thinned: bool


def plan_evaluation_rows(
    workloads: Sequence[Workload],
    *,
    num_available: int,
    mean_tokens_per_row: float,
    settings: EvaluationSettings,
    kept_share: float = 1.0,
    min_rows: int = 1,
) -> EvaluationPlan:
    """Thin the validation rows to the evaluation budget.

    Args:
        workloads: All trials of the task; they share the rows, so one number is chosen for all.
        mean_tokens_per_row: Tokens that evaluating one row reads, generated ones included.
        kept_share: Share of the trials expected to go on after warm-up.
        min_rows: Rows never thinned away, even where the bound is then broken (``cost_fraction`` says so).

    Raises:
        ValueError: there is nothing to train or to evaluate on.
    """
    if not workloads or num_available < 1 or mean_tokens_per_row <= 0:
        raise ValueError("an evaluation plan needs trials, validation rows and tokens in them")
    train_tokens = 0.0
    num_evaluations = 0.0
    for workload in workloads:
        candidate = workload.candidate
        # Trials are watched more closely within warm-up, so a sweep that stops most of them there affords fewer rows.
        num_warmup = sum(step <= candidate.warmup_steps for step in candidate.evaluation_steps)
        num_later = len(candidate.evaluation_steps) - num_warmup
        later_steps = candidate.planned_steps - candidate.warmup_steps
        train_tokens += workload.tokens_per_step * (candidate.warmup_steps + kept_share * later_steps)
        num_evaluations += num_warmup + kept_share * num_later
    # All trials use the same rows: with different ones their losses could not be ranked.
    cost_per_row = EVALUATION_TOKEN_COST * num_evaluations * mean_tokens_per_row / train_tokens
    # The bound gives way before the rows do: with fewer than `min_rows` the ranks of trials would be noise.
    wanted = min(settings.max_examples, num_available)
    affordable = max(math.floor(settings.max_cost_fraction / cost_per_row), min_rows)
    num_rows = max(1, min(wanted, affordable))
    return EvaluationPlan(num_rows=num_rows, cost_fraction=cost_per_row * num_rows, thinned=num_rows < wanted)
