"""Seconds of a whole task: its trials pass through in admission's order, all of them to their end.

With several ranks each steps its own residents at the same time, so the busiest one decides how long a step takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cohort.scheduling.admission import Capacity, Request, admit
from cohort.scheduling.cost.model import AdapterWork, StepCost

__all__ = [
    "EvaluationWork",
    "TrainingPhase",
    "TrainingTime",
    "evaluation_seconds",
    "training_phases",
    "training_time",
]

# an evaluated token is a forward pass only
EVALUATION_SHARE = 0.5


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


@dataclass(frozen=True, kw_only=True)
class TrainingPhase:
    """Steps of the same residents.

    Attributes:
        num_steps: How many.
        seconds: Of all of them.
        resident: Ids of the trials that step.
        num_waiting: Trials that found no room.
    """

    num_steps: int
    seconds: float
    resident: tuple[int, ...]
    num_waiting: int


def training_phases(
    requests: Sequence[Request], *, works: Mapping[int, AdapterWork], capacity: Capacity, cost: StepCost
) -> Iterator[TrainingPhase]:
    """Yield how adapters pass through an executor when residents step together and leavers make room.

    Args:
        requests: Those that want room.
        works: What their steps cost, by trial.

    Raises:
        InputError: a trial does not fit even alone.
    """
    left = {request.trial_id: works[request.trial_id].num_steps for request in requests}
    # in admission's order: of tasks that share an executor the first goes first
    waiting = sorted(requests, key=lambda r: (-r.priority, r.arrival, -r.batch_size))
    resident: list[Request] = []
    vacated: list[int] = []
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
        yield TrainingPhase(
            num_steps=steps,
            seconds=steps
            * max(
                cost.step_seconds([works[request.trial_id] for request in resident if request.rank == rank])
                for rank in {request.rank for request in resident}
            ),
            resident=tuple(request.trial_id for request in resident),
            num_waiting=len(waiting),
        )
        for request in resident:
            left[request.trial_id] -= steps
        vacated = [request.batch_size for request in resident if not left[request.trial_id]]
        resident = [request for request in resident if left[request.trial_id]]


def training_time(
    requests: Sequence[Request], *, works: Mapping[int, AdapterWork], capacity: Capacity, cost: StepCost
) -> TrainingTime:
    """Return the time until the last of :func:`training_phases` ends.

    Raises:
        InputError: a trial does not fit even alone.
    """
    phases = list(training_phases(requests, works=works, capacity=capacity, cost=cost))
    return TrainingTime(
        seconds=sum(phase.seconds for phase in phases), num_steps=sum(phase.num_steps for phase in phases)
    )


def evaluation_seconds(
    evaluations: Mapping[int, EvaluationWork], *, works: Mapping[int, AdapterWork], cost: StepCost, token_budget: int
) -> float:
    """Return the seconds of all evaluations, each trial's measured alone: packed with others they are cheaper."""
    seconds = 0.0
    for trial_id, evaluation in evaluations.items():
        passes = max(1, -(-round(evaluation.num_tokens) // token_budget))
        # All passes are taken as equally full.
        each = AdapterWork(
            r=works[trial_id].r,
            num_tokens=evaluation.num_tokens / passes,
            num_sequences=evaluation.num_sequences / passes,
        )
        seconds += evaluation.num_evaluations * passes * EVALUATION_SHARE * cost.step_seconds([each])
    return seconds
