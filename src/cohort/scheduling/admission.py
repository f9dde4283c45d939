"""Who is resident: which trials share the backbone next, within its room for ranks, slots and tokens.

Pure: the state of the queue in, changes out. What exceeds the token budget in a step is split into micro-batches, so
the token limit is a target; rank rows and slots are room in the bank and hard limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.core.errors import InputError, Problem

__all__ = ["Admission", "Capacity", "Request", "admit", "find_inadmissible"]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Room of one executor.

    Attributes:
        rank_rows: Most rank rows of all resident adapters together (sum of r); their state must fit in memory.
        num_slots: Most resident adapters.
        tokens_per_step: Predicted tokens of one step of all residents together that fill the machine.
    """

    rank_rows: int
    num_slots: int
    tokens_per_step: float


@dataclass(frozen=True, kw_only=True)
class Request:
    """A trial that is or wants to be resident.

    Attributes:
        batch_size: Examples of one of its steps.
        mean_length: Mean tokens of an example.
        priority: Larger goes first.
        arrival: Place of its task among those that share the executor; among equal priorities the first goes first.
    """

    trial_id: int
    r: int
    batch_size: int
    mean_length: float
    priority: int = 0
    arrival: int = 0

    @property
    def tokens_per_step(self) -> float:
        return self.batch_size * self.mean_length


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What to change, evictions first.

    Attributes:
        evicted: Residents that make room for more urgent trials; they are runnable again.
        admitted: Trials that become resident, in this order.
    """

    evicted: tuple[int, ...] = ()
    admitted: tuple[int, ...] = ()


def find_inadmissible(requests: Sequence[Request], *, capacity: Capacity) -> tuple[Problem, ...]:
    """Return a problem for each trial that could not be resident even alone."""
    return tuple(
        Problem(
            where=f"trial {request.trial_id}: r",
            found=str(request.r),
            allowed=f"at most {capacity.rank_rows}, the rank rows that fit next to the base model",
            hint="Choose a smaller r, or a machine with more memory.",
        )
        for request in requests
        if request.r > capacity.rank_rows or capacity.num_slots < 1
    )


def admit(
    runnable: Sequence[Request],
    resident: Sequence[Request],
    capacity: Capacity,
    *,
    vacated_batch_sizes: Sequence[int] = (),
) -> Admission:
    """Choose who becomes resident now, at a step boundary.

    Order: priority, then the task that came first, then decreasing batch size, then first come. Slots that were just
    vacated are first offered to trials of the same batch size among those of the first task in order, which keeps packs
    uniform; then all are taken greedily in order, skipping what does not fit. A trial on an empty machine fits whatever
    its tokens. A trial of higher priority evicts residents of lower priority, the least urgent and last come first, if
    that makes it fit.

    Args:
        runnable: Trials that want to be resident, in order of arrival; residents among them are passed over.
        resident: Trials that are resident, in order of admission.
        vacated_batch_sizes: Batch sizes of the trials that left since the last call.

    Raises:
        InputError: a trial does not fit even alone; it would wait for ever.

    Source: ALTO A.3; priorities after PLoRA and mLoRA's preemptive queue.
    """
    # Refused before anything is chosen: a trial that never fits would wait for ever, and the others would hide it.
    problems = find_inadmissible(runnable, capacity=capacity)
    if problems:
        raise InputError(problems)
    inside = list(resident)
    resident_ids = {request.trial_id for request in resident}
    waiting = [request for request in runnable if request.trial_id not in resident_ids]
    # sorted() is stable: equal keys stay in order of arrival
    waiting = sorted(waiting, key=lambda request: (-request.priority, request.arrival, -request.batch_size))
    admitted: list[Request] = []
    evicted: list[Request] = []

    def take(request: Request) -> None:
        waiting.remove(request)
        inside.append(request)
        admitted.append(request)

    # First the slots that trials of a batch size left: steps of equal batch sizes keep a pack uniform (ALTO A.3).
    for batch_size in vacated_batch_sizes:
        for request in waiting:
            # Only among trials of the first task in order: uniform packs must not let a later task overtake.
            if (request.priority, request.arrival) != (waiting[0].priority, waiting[0].arrival):
                break
            if request.batch_size == batch_size and _fits(request, inside, capacity):
                take(request)
                break
    # Greedy, skipping what does not fit: a small trial behind a large one uses room that would stay empty.
    for request in list(waiting):
        victims = _victims(request, inside, capacity)
        if victims is None:
            continue
        for victim in victims:
            inside.remove(victim)
            evicted.append(victim)
        take(request)
    return Admission(
        evicted=tuple(request.trial_id for request in evicted), admitted=tuple(request.trial_id for request in admitted)
    )


def _fits(request: Request, inside: Sequence[Request], capacity: Capacity) -> bool:
    together = [*inside, request]
    # Slots and rank rows are room in the bank, hard limits; tokens are a target, for a step is split to fit memory.
    if len(together) > capacity.num_slots or sum(other.r for other in together) > capacity.rank_rows:
        return False
    # Alone any trial fits, or a batch larger than the target would never train.
    return not inside or sum(other.tokens_per_step for other in together) <= capacity.tokens_per_step


def _victims(request: Request, inside: Sequence[Request], capacity: Capacity) -> list[Request] | None:
    """Return the residents to evict for ``request``, none when it fits as it is; None when it cannot be made to fit."""
    victims: list[Request] = []
    staying = list(inside)
    less_urgent = sorted(
        (other for other in reversed(inside) if other.priority < request.priority), key=lambda other: other.priority
    )
    while not _fits(request, staying, capacity):
        if not less_urgent:
            return None
        victims.append(less_urgent.pop(0))
        staying.remove(victims[-1])
    return victims
