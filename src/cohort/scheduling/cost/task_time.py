"""Seconds of a whole task: its trials pass through in admission's order, all of them to their end.

With several ranks each steps its own residents at the same time, so the busiest one decides how long a step takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cohort.scheduling.admission import Capacity, Request, admit
from cohort.scheduling.cost.model import StepCost, TrialWork

__all__ = ["EvaluationWork", "TrainingTime", "WaitingTrial", "evaluation_seconds", "training_time"]

# an evaluated token is a forward pass only
EVALUATION_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class WaitingTrial:
    """A trial as admission and the cost model see it."""

    request: Request
    work: TrialWork


@dataclass(frozen=True, kw_only=True)
class EvaluationWork:
    """All evaluations of one trial.

    Attributes:
        num_evaluations: Over its planned steps.
        num_tokens: Tokens read for one.
        num_sequences: Sequences of one.
    """

    num_evaluations: int
    num_tokens: float
    num_sequences: int


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Seconds of all steps, and how many steps the executor, or its busiest rank, takes for them."""

    seconds: float
    num_steps: int


def training_time(trials: Sequence[WaitingTrial], *, capacity: Capacity, cost: StepCost) -> TrainingTime:
    """Return the time until the last of ``trials`` ends, when residents step together and leavers make room.

    Raises:
        InputError: a trial does not fit even alone.
    """
    works = {trial.request.trial_id: trial.work for trial in trials}
    left = {trial_id: work.num_steps for trial_id, work in works.items()}
    waiting = sorted((trial.request for trial in trials), key=lambda r: (-r.priority, -r.batch_size))
    resident: list[Request] = []
    vacated: list[int] = []
    seconds, num_steps = 0.0, 0
    while waiting or resident:
        # the first in order decide; the rest of a long queue cannot be admitted now
        admission = admit(waiting[: 4 * capacity.num_slots], resident, capacity, vacated_batch_sizes=vacated)
        admitted = set(admission.admitted)
        resident = [
            replace(request, rank=admission.moved.get(request.trial_id, request.rank)) for request in resident
        ] + [
            replace(request, rank=admission.ranks.get(request.trial_id, 0))
            for request in waiting
            if request.trial_id in admitted
        ]
        waiting = [request for request in waiting if request.trial_id not in admitted]
        # No trial enters or leaves before the next end, so all steps until then cost the same.
        steps = min(left[request.trial_id] for request in resident)
        seconds += steps * max(
            cost.step_seconds([works[request.trial_id] for request in resident if request.rank == rank])
            for rank in {request.rank for request in resident}
        )
        num_steps += steps
        for request in resident:
            left[request.trial_id] -= steps
        vacated = [request.batch_size for request in resident if not left[request.trial_id]]
        resident = [request for request in resident if left[request.trial_id]]
    return TrainingTime(seconds=seconds, num_steps=num_steps)


def evaluation_seconds(
    evaluations: Mapping[int, EvaluationWork], *, works: Mapping[int, TrialWork], cost: StepCost, token_budget: int
) -> float:
    """Return the seconds of all evaluations, each trial's measured alone: packed with others they are cheaper."""
    seconds = 0.0
    for trial_id, evaluation in evaluations.items():
        passes = max(1, -(-round(evaluation.num_tokens) // token_budget))
        # All passes are taken as equally full.
        each = TrialWork(
            r=works[trial_id].r,
            num_tokens=evaluation.num_tokens / passes,
            num_sequences=evaluation.num_sequences / passes,
        )
        seconds += evaluation.num_evaluations * passes * EVALUATION_SHARE * cost.step_seconds([each])
    return seconds
