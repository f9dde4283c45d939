"""Who is resident: which trials share the backbone next, within its room for ranks, slots and tokens.

Pure: the state of the queue in, changes out. What exceeds the token budget in a step is split into micro-batches, so
the token limit is a target; rank rows and slots are room in the bank and hard limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cohort.core.errors import InputError, Problem

# of the tokens of the busiest rank: a move that saves less is not made
LEAST_GAIN = 0.1

__all__ = ["Admission", "Capacity", "Request", "admit", "find_inadmissible"]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Room of one executor.

    Attributes:
        rank_rows: Most rank rows of all resident adapters together (sum of r); their state must fit in memory.
        num_slots: Most resident adapters.
        tokens_per_step: Predicted tokens of one step of all residents together that fill the machine.
        num_ranks: Executors that have this room each, one on each GPU. A trial is on one of them.
    """

    rank_rows: int
    num_slots: int
    tokens_per_step: float
    num_ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """Room for an adapter that is or wants to be resident.

    Attributes:
        batch_size: Examples of one of its steps.
        mean_length: Mean tokens of an example.
        priority: Larger goes first.
        arrival: Place of its task among those that share the executor; among equal priorities the first goes first.
        rank: Where a resident is.
    """

    trial_id: int
    r: int
    batch_size: int
    mean_length: float
    priority: int = 0
    arrival: int = 0
    rank: int = 0

    @property
    def tokens_per_step(self) -> float:
        return self.batch_size * self.mean_length


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What to change, evictions first.

    Attributes:
        evicted: Residents that make room for more urgent trials; they are runnable again.
        admitted: Trials that become resident, in this order.
        ranks: Where each of them goes; none with a single rank.
        moved: Residents that go to another rank, which then has more to do and theirs less, with that rank.
    """

    evicted: tuple[int, ...] = ()
    admitted: tuple[int, ...] = ()
    ranks: Mapping[int, int] = field(default_factory=dict)
    moved: Mapping[int, int] = field(default_factory=dict)


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

    def take(request: Request, rank: int) -> None:
        waiting.remove(request)
        placed = replace(request, rank=rank)
        inside.append(placed)
        admitted.append(placed)

    # First the slots that trials of a batch size left: steps of equal batch sizes keep a pack uniform (ALTO A.3).
    for batch_size in vacated_batch_sizes:
        for request in waiting:
            # Only among trials of the first task in order: uniform packs must not let a later task overtake.
            if (request.priority, request.arrival) != (waiting[0].priority, waiting[0].arrival):
                break
            if request.batch_size == batch_size and (rank := _rank_for(request, inside, capacity)) is not None:
                take(request, rank)
                break
    # Greedy, skipping what does not fit: a small trial behind a large one uses room that would stay empty.
    for request in list(waiting):
        victims = _victims(request, inside, capacity)
        if victims is None:
            continue
        for victim in victims:
            inside.remove(victim)
            evicted.append(victim)
        rank = _rank_for(request, inside, capacity)
        assert rank is not None, "there is room once the victims are gone"
        take(request, rank)
    has_ranks = capacity.num_ranks > 1
    return Admission(
        evicted=tuple(request.trial_id for request in evicted),
        admitted=tuple(request.trial_id for request in admitted),
        ranks={request.trial_id: request.rank for request in admitted} if has_ranks else {},
        # where trials wait, the rank with room gets one of those
        moved=_moves(inside, capacity, fresh=frozenset(admitted)) if has_ranks and not waiting else {},
    )


def _moves(inside: Sequence[Request], capacity: Capacity, *, fresh: frozenset[Request]) -> dict[int, int]:
    """Return the residents to move, and to which rank, so that the rank with the most tokens a step has fewer.

    All ranks step together, so the busiest decides how long a step takes. Trials of ``fresh`` are where they belong.
    """
    where = {request.trial_id: request for request in inside}
    moved: dict[int, int] = {}
    while True:
        loads = [0.0] * capacity.num_ranks
        for request in where.values():
            loads[request.rank] += request.tokens_per_step
        busiest = max(range(capacity.num_ranks), key=lambda rank: (loads[rank], -rank))
        best: tuple[float, Request, int] | None = None
        for request in where.values():
            if request.rank != busiest or request in fresh or request.trial_id in moved:
                continue
            others = [other for other in where.values() if other.trial_id != request.trial_id]
            rank = _rank_for(request, others, capacity)
            if rank is None or rank == busiest:
                continue
            after = max(loads[busiest] - request.tokens_per_step, loads[rank] + request.tokens_per_step)
            if best is None or after < best[0]:
                best = (after, request, rank)
        # a move costs a copy of the state: a small gain is not worth it
        if best is None or best[0] > (1 - LEAST_GAIN) * loads[busiest]:
            return moved
        _, request, rank = best
        where[request.trial_id] = replace(request, rank=rank)
        moved[request.trial_id] = rank


def _rank_for(request: Request, inside: Sequence[Request], capacity: Capacity) -> int | None:
    """Return the rank with the fewest tokens a step on which ``request`` fits; None if there is none."""
    # one walk over the residents: each trial that waits asks this at each step boundary
    counts, rank_rows = ([0] * capacity.num_ranks for _ in range(2))
    loads = [0.0] * capacity.num_ranks
    for other in inside:
        counts[other.rank] += 1
        rank_rows[other.rank] += other.r
        loads[other.rank] += other.tokens_per_step
    # Slots and rank rows are room in the bank, hard limits; tokens are a target, for a step is split to fit memory.
    # Alone any trial fits, or a batch larger than the target would never train.
    fitting = (
        rank
        for rank in range(capacity.num_ranks)
        if counts[rank] < capacity.num_slots
        and rank_rows[rank] + request.r <= capacity.rank_rows
        and (not counts[rank] or loads[rank] + request.tokens_per_step <= capacity.tokens_per_step)
    )
    return min(fitting, key=lambda rank: (loads[rank], rank), default=None)


def _victims(request: Request, inside: Sequence[Request], capacity: Capacity) -> list[Request] | None:
    """Return the residents to evict for ``request``, none when it fits as it is; None when it cannot be made to fit."""
    victims: list[Request] = []
    staying = list(inside)
    less_urgent = sorted(
        (other for other in reversed(inside) if other.priority < request.priority), key=lambda other: other.priority
    )
    while _rank_for(request, staying, capacity) is None:
        if not less_urgent:
            return None
        victims.append(less_urgent.pop(0))
        staying.remove(victims[-1])
    return victims
