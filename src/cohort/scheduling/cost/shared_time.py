"""How long tasks take that share one executor: the first in order goes first, and trials of the next fill its passes.

A task's trials alone end in a tail of few small passes, which cost nearly as much as full ones. Together, the tail of
one is filled with the trials of the next. What is no training of trials (evaluations, records, results) takes as long
as before, and is spread evenly over the time; what starting a worker on a base model takes is spared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.cost.model import AdapterWork, StepCost
from cohort.scheduling.cost.task_time import TrainingPhase, training_phases

__all__ = ["LEAST_ROOM", "SharedTime", "SharedWork", "shared_time", "works_after"]

# share of a step's tokens that is worth another task's trials
LEAST_ROOM = 0.25
# trials of a task, for numbers that differ between tasks
_MOST_TRIALS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class SharedWork:
    """What is left of a task, as the trials of an executor that it may share.

    Attributes:
        key: Tasks of one key can share: base model, adapted linears, device and memory limits are the same.
        requests: The trials that have not ended.
        works: What their steps cost, and how many each has left, by trial.
        capacity: Of the executor that is built for the task, if it comes first.
        cost: Of a step.
        other_seconds: Evaluations, comparison, records and results.
        start_seconds: Reading the base model and building the executor, spared by a task that joins one.
    """

    key: str
    requests: tuple[Request, ...]
    works: Mapping[int, AdapterWork]
    capacity: Capacity
    cost: StepCost
    other_seconds: float = 0.0
    start_seconds: float = 0.0

    def fits(self, capacity: Capacity) -> bool:
        """Return whether each trial finds room in a bank of this size."""
        return capacity.num_slots > 0 and all(request.r <= capacity.rank_rows for request in self.requests)

    def shortened(self, share: float) -> SharedWork:
        """Return the work if each trial did ``share`` of its steps."""
        left = {trial_id: max(1, round(work.num_steps * share)) for trial_id, work in self.works.items()}
        return replace(self.with_steps(left), other_seconds=self.other_seconds * share)

    def with_steps(self, left: Mapping[int, int]) -> SharedWork:
        """Return the work if each trial has this number of steps left; those without any have ended."""
        requests = tuple(request for request in self.requests if left[request.trial_id] > 0)
        works = {r.trial_id: replace(self.works[r.trial_id], num_steps=left[r.trial_id]) for r in requests}
        return replace(self, requests=requests, works=works)


@dataclass(frozen=True, kw_only=True)
class SharedTime:
    """Seconds of tasks that share an executor, from now.

    Attributes:
        ends: When each ends, in the order they were given.
        room_from: When a step first leaves room for trials of a further task while none waits; None: never.
    """

    ends: tuple[float, ...]
    room_from: float | None

    @property
    def seconds(self) -> float:
        """Until the last one ends."""
        return max(self.ends, default=0.0)


def shared_time(works: Sequence[SharedWork]) -> SharedTime:
    """Predict tasks that share the executor of the first, in their order; one alone is a task that shares with none.

    Raises:
        InputError: a trial fits no such executor.
    """
    first = works[0]
    phases = list(_phases(works))
    training = sum(phase.seconds for phase in phases)
    stretch = _stretch(works, training)
    requests = {request.trial_id: request for request in _joined(works)}
    ends, now, room_from = [0.0] * len(works), 0.0, None
    for phase in phases:
        tokens = sum(requests[key].tokens_per_step for key in phase.resident)
        is_roomy = len(phase.resident) < first.capacity.num_slots and (
            tokens <= (1 - LEAST_ROOM) * first.capacity.tokens_per_step
        )
        if room_from is None and not phase.num_waiting and is_roomy:
            room_from = now * stretch
        now += phase.seconds
        for key in phase.resident:
            ends[key // _MOST_TRIALS] = now * stretch
    # a task without trials has its results to write
    others = [end or work.other_seconds for end, work in zip(ends, works, strict=True)]
    return SharedTime(ends=tuple(others), room_from=room_from)


def works_after(works: Sequence[SharedWork], seconds: float) -> tuple[SharedWork, ...]:
    """Return what is left of tasks that have shared an executor for ``seconds``."""
    phases = list(_phases(works))
    training = sum(phase.seconds for phase in phases)
    stretch = _stretch(works, training)
    left = {key: work.num_steps for key, work in _joined_works(works).items()}
    until = seconds / stretch if stretch else 0.0
    for phase in phases:
        share = min(1.0, max(0.0, until / phase.seconds)) if phase.seconds else 1.0
        for key in phase.resident:
            left[key] -= int(share * phase.num_steps)
        until -= phase.seconds
        if until <= 0:
            break
    done = min(1.0, seconds / (training * stretch)) if training else 1.0
    return tuple(
        replace(
            work.with_steps({trial_id: left[_key(index, trial_id)] for trial_id in work.works}),
            other_seconds=work.other_seconds * (1 - done),
        )
        for index, work in enumerate(works)
    )


def _phases(works: Sequence[SharedWork]) -> Sequence[TrainingPhase]:
    first = works[0]
    phases = training_phases(_joined(works), works=_joined_works(works), capacity=first.capacity, cost=first.cost)
    return tuple(phases)


def _stretch(works: Sequence[SharedWork], training: float) -> float:
    return 1 + sum(work.other_seconds for work in works) / training if training else 0.0


def _joined(works: Sequence[SharedWork]) -> list[Request]:
    """Return the trials of all tasks under numbers of their own, the first task's first in admission's order."""
    return [
        replace(request, trial_id=_key(index, request.trial_id), arrival=index)
        for index, work in enumerate(works)
        for request in work.requests
    ]


def _joined_works(works: Sequence[SharedWork]) -> dict[int, AdapterWork]:
    return {_key(index, trial_id): own for index, work in enumerate(works) for trial_id, own in work.works.items()}


def _key(index: int, trial_id: int) -> int:
    return index * _MOST_TRIALS + trial_id
