"""Admission by hand, and what no admission may do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.core.errors import InputError
from cohort.scheduling.admission import Admission, Capacity, Request, admit, find_inadmissible

ROOMY = Capacity(rank_rows=1024, num_slots=32, tokens_per_step=1e6)


def request(trial_id: int, *, r: int = 8, batch_size: int = 1, length: float = 100, priority: int = 0) -> Request:
    return Request(trial_id=trial_id, r=r, batch_size=batch_size, mean_length=length, priority=priority)


def test_priority_then_batch_size_then_first_come() -> None:
    runnable = [
        request(0, batch_size=1),
        request(1, batch_size=8),
        request(2, batch_size=1, priority=1),
        request(3, batch_size=8),
        request(4, batch_size=4, priority=1),
    ]
    assert admit(runnable, [], ROOMY) == Admission(admitted=(4, 2, 1, 3, 0))


@pytest.mark.parametrize(
    ("capacity", "admitted"),
    [
        (Capacity(rank_rows=1024, num_slots=2, tokens_per_step=1e6), (0, 1)),
        (Capacity(rank_rows=24, num_slots=9, tokens_per_step=1e6), (0, 2)),  # 16 + 16 is too much, 16 + 8 is not
        (Capacity(rank_rows=1024, num_slots=9, tokens_per_step=1000), (0, 2)),  # 800 + 400, but 800 + 100
    ],
)
def test_each_limit_skips_what_does_not_fit(capacity: Capacity, admitted: tuple[int, ...]) -> None:
    runnable = [request(0, r=16, batch_size=8), request(1, r=16, batch_size=4), request(2, r=8, batch_size=1)]
    assert admit(runnable, [], capacity).admitted == admitted


def test_among_equal_priorities_the_first_task_goes_first() -> None:
    capacity = Capacity(rank_rows=64, num_slots=2, tokens_per_step=10_000)
    first = [replace(request(0, batch_size=1), arrival=0), replace(request(1, batch_size=1), arrival=0)]
    second = [replace(request(2, batch_size=8), arrival=1), replace(request(3, batch_size=4), arrival=1)]
    assert admit([*second, *first], [], capacity) == Admission(admitted=(0, 1))
    # a vacated slot stays with the first task as well, whatever batch sizes the second has
    assert admit([*second, *first], [first[0]], capacity, vacated_batch_sizes=[8]) == Admission(admitted=(1,))
    assert admit([*second, first[0]], [first[0]], capacity, vacated_batch_sizes=[4]) == Admission(admitted=(3,))


def test_limits_are_inclusive() -> None:
    runnable = [request(0, r=8, batch_size=5), request(1, r=8, batch_size=5)]
    assert admit(runnable, [], Capacity(rank_rows=16, num_slots=2, tokens_per_step=1000)).admitted == (0, 1)


def test_residents_count_and_are_passed_over() -> None:
    resident = [request(0, r=8), request(1, r=8)]
    runnable = [*resident, request(2, r=8), request(3, r=8)]
    assert admit(runnable, resident, Capacity(rank_rows=24, num_slots=9, tokens_per_step=1e6)).admitted == (2,)


def test_a_trial_beyond_the_token_budget_is_admitted_alone() -> None:
    small = Capacity(rank_rows=64, num_slots=4, tokens_per_step=50)
    runnable = [request(0, batch_size=8), request(1)]
    assert admit(runnable, [], small).admitted == (0,), "its step is split into micro-batches"
    assert admit(runnable, [request(0, batch_size=8)], small).admitted == ()


def test_a_vacated_slot_goes_to_the_same_batch_size_first() -> None:
    resident = [request(9, batch_size=2)]
    runnable = [request(0, batch_size=4), request(1, batch_size=2), request(2, batch_size=2)]
    two = Capacity(rank_rows=1024, num_slots=2, tokens_per_step=1e6)
    assert admit(runnable, resident, two, vacated_batch_sizes=[2]).admitted == (1,)
    assert admit(runnable, resident, two, vacated_batch_sizes=[8]).admitted == (0,), "else any that fits"
    assert admit(runnable, resident, two).admitted == (0,)


def test_same_batch_size_never_overtakes_priority() -> None:
    runnable = [request(0, batch_size=2), request(1, batch_size=1, priority=1)]
    one = Capacity(rank_rows=1024, num_slots=1, tokens_per_step=1e6)
    assert admit(runnable, [], one, vacated_batch_sizes=[2]).admitted == (1,)


def test_priority_evicts_the_least_urgent_and_last_come() -> None:
    resident = [request(0, priority=1), request(1), request(2)]
    urgent = request(3, priority=2)
    full = Capacity(rank_rows=1024, num_slots=3, tokens_per_step=1e6)
    assert admit([*resident, urgent], resident, full) == Admission(evicted=(2,), admitted=(3,))
    wide = request(4, r=24, priority=2)
    tight = Capacity(rank_rows=32, num_slots=9, tokens_per_step=1e6)
    assert admit([*resident, wide], resident, tight) == Admission(evicted=(2, 1), admitted=(4,))


def test_nobody_is_evicted_for_nothing() -> None:
    resident = [request(0, r=24, priority=2), request(1, r=8)]
    tight = Capacity(rank_rows=32, num_slots=9, tokens_per_step=1e6)
    # evicting trial 1 would not make room for 16 beside 24
    assert admit([*resident, request(2, r=16, priority=1)], resident, tight) == Admission()
    assert admit([*resident, request(3, r=8)], resident, tight) == Admission(), "equal priority evicts nobody"


def test_what_never_fits_is_an_error_not_a_wait() -> None:
    capacity = Capacity(rank_rows=32, num_slots=4, tokens_per_step=1e6)
    requests = [request(0, r=64), request(1, r=8), request(2, r=33)]
    assert [str(problem.where) for problem in find_inadmissible(requests, capacity=capacity)] == [
        "trial 0: r",
        "trial 2: r",
    ]
    with pytest.raises(InputError, match="trial 0: r: found 64; allowed: at most 32"):
        admit(requests, [], capacity)


requests_strategy = st.lists(
    st.builds(
        lambda r, batch_size, length, priority: (r, batch_size, length, priority),
        st.integers(1, 32),
        st.sampled_from([1, 2, 4, 8]),
        st.integers(1, 300),
        st.integers(0, 2),
    ),
    max_size=10,
)


@given(
    requests_strategy,
    st.integers(32, 128),
    st.integers(1, 6),
    st.integers(1, 3000),
    st.lists(st.sampled_from([1, 2, 4, 8]), max_size=3),
)
def test_no_admission_breaks_a_limit_or_leaves_room(
    rows: list[tuple[int, int, int, int]], rank_rows: int, num_slots: int, tokens: int, vacated: list[int]
) -> None:
    capacity = Capacity(rank_rows=rank_rows, num_slots=num_slots, tokens_per_step=tokens)
    everyone = [request(i, r=r, batch_size=b, length=length, priority=p) for i, (r, b, length, p) in enumerate(rows)]
    first = admit(everyone[: len(everyone) // 2], [], capacity)
    resident = [everyone[i] for i in first.admitted]
    second = admit(everyone, resident, capacity, vacated_batch_sizes=vacated)
    inside_ids = (set(first.admitted) - set(second.evicted)) | set(second.admitted)
    inside = [everyone[i] for i in sorted(inside_ids)]
    assert set(second.evicted) <= set(first.admitted)
    assert not set(second.admitted) & (set(first.admitted) - set(second.evicted))
    assert sum(x.r for x in inside) <= rank_rows
    assert len(inside) <= num_slots
    assert len(inside) <= 1 or sum(x.tokens_per_step for x in inside) <= tokens
    assert bool(inside) == bool(everyone), "an executor is never idle while a trial can run"
    best_inside = max((x.priority for x in inside), default=0)
    assert all(x.priority <= best_inside for x in everyone), "the most urgent trial is resident or its equals are"


TWO_RANKS = Capacity(rank_rows=32, num_slots=2, tokens_per_step=1000, num_ranks=2)


def test_a_trial_goes_to_the_rank_with_the_least_to_do() -> None:
    runnable = [request(0, batch_size=4), request(1, batch_size=2), request(2, batch_size=1), request(3, batch_size=1)]
    found = admit(runnable, [], TWO_RANKS)
    assert found == Admission(admitted=(0, 1, 2, 3), ranks={0: 0, 1: 1, 2: 1, 3: 0})


def test_no_rank_holds_more_than_its_own_room() -> None:
    # 24 rank rows are free in all, but not on one rank
    inside = [replace(request(0, r=16), rank=0), replace(request(1, r=24), rank=1)]
    assert admit([request(2, r=24)], inside, TWO_RANKS) == Admission()
    assert admit([request(2, r=8)], inside, TWO_RANKS).ranks == {2: 0}


def test_residents_move_where_that_shortens_the_step_and_nobody_waits() -> None:
    uneven = [replace(request(trial, batch_size=2), rank=0) for trial in range(2)]
    assert admit([], uneven, TWO_RANKS) == Admission(moved={0: 1})
    # five against four: less than a tenth would be gained
    even = [replace(request(0, batch_size=5), rank=0), replace(request(1, batch_size=4), rank=1)]
    assert admit([], even, TWO_RANKS) == Admission()
    # while trials wait for slots, the rank with room gets those
    waiting = [request(trial, batch_size=1) for trial in (2, 3, 4)]
    assert admit(waiting, uneven, TWO_RANKS) == Admission(admitted=(2, 3), ranks={2: 1, 3: 1})


@given(
    st.lists(st.tuples(st.integers(1, 32), st.integers(1, 8)), min_size=1, max_size=20),
    st.integers(2, 4),
)
def test_ranks_are_never_overfull(trials: list[tuple[int, int]], num_ranks: int) -> None:
    capacity = Capacity(rank_rows=48, num_slots=3, tokens_per_step=1000, num_ranks=num_ranks)
    runnable = [request(number, r=r, batch_size=size) for number, (r, size) in enumerate(trials)]
    resident: list[Request] = []
    while runnable:
        found = admit(runnable, resident, capacity)
        by_id = {entry.trial_id: entry for entry in runnable}
        resident = [replace(entry, rank=found.moved.get(entry.trial_id, entry.rank)) for entry in resident]
        resident += [replace(by_id[trial_id], rank=found.ranks[trial_id]) for trial_id in found.admitted]
        for rank in range(num_ranks):
            there = [entry for entry in resident if entry.rank == rank]
            assert len(there) <= 3
            assert sum(entry.r for entry in there) <= 48
        # one ends: some trial is always resident, or the others would wait for ever
        ended = resident.pop(0)
        runnable = [entry for entry in runnable if entry.trial_id != ended.trial_id]
