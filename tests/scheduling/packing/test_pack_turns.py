"""A plan while it runs: packs take turns, trials are where they belong, and what has not begun is placed again."""

from __future__ import annotations

import pytest

from cohort.scheduling.admission import Admission, Request
from cohort.scheduling.packing.pack_turns import PackTurns, planned_again
from cohort.scheduling.packing.records import PackJob
from tests.scheduling.packing.packing_instances import problem, trial


def job(*trial_ids: int, rank: int, start: float = 0.0, end: float = 1.0) -> PackJob:
    return PackJob(trial_ids=trial_ids, gpu_ids=(rank,), start_seconds=start, end_seconds=end)


def requests(*trial_ids: int, rank: int = 0) -> list[Request]:
    return [Request(trial_id=trial_id, r=8, batch_size=1, mean_length=10.0, rank=rank) for trial_id in trial_ids]


JOBS = [job(0, 1, rank=0), job(2, rank=0, start=1.0), job(3, 4, rank=1)]


def test_packs_enter_together_and_the_next_begins_when_all_have_ended() -> None:
    turns = PackTurns(JOBS, num_ranks=2)
    assert turns.knows([0, 4])
    assert not turns.knows([5])
    assert turns.begin_next(range(5)) == (JOBS[0], JOBS[2])
    assert turns.admission(requests(0, 1, 2, 3, 4), []) == Admission(
        admitted=(0, 1, 3, 4), ranks={0: 0, 1: 0, 3: 1, 4: 1}
    )
    resident = [*requests(0, 1), *requests(3, 4, rank=1)]
    # one of two has ended: its place stays empty
    assert turns.take_ended([1, 2, 3, 4]) == ()
    assert turns.begin_next([1, 2, 3, 4]) == ()
    assert turns.admission(requests(1, 2, 3, 4), resident[1:]) == Admission()
    assert turns.take_ended([2, 3, 4]) == (JOBS[0],)
    assert turns.later == (JOBS[1],)
    assert turns.begin_next([2, 3, 4]) == (JOBS[1],)
    assert turns.admission(requests(2, 3, 4), resident[2:]) == Admission(admitted=(2,), ranks={2: 0})
    assert turns.running == (JOBS[1], JOBS[2])


def test_a_pack_whose_trials_have_all_ended_is_left_out() -> None:
    turns = PackTurns(JOBS, num_ranks=2)
    assert turns.begin_next([2]) == (JOBS[1],)
    assert turns.running == (JOBS[1], None)


def test_residents_that_belong_elsewhere_leave_and_come_back() -> None:
    turns = PackTurns(JOBS, num_ranks=2)
    turns.begin_next(range(5))
    # as a resumed run has them: 0 where 3 belongs, 2 before its turn
    resident = [*requests(2, 3), *requests(0, 4, rank=1)]
    assert turns.admission(requests(0, 1, 2, 3, 4), resident) == Admission(
        evicted=(2, 3, 0), admitted=(0, 1, 3), ranks={0: 0, 1: 0, 3: 1}
    )


def test_packs_that_have_not_begun_go_where_there_is_room_first() -> None:
    trials = [trial(i, r=8, batch_size=2) for i in range(6)]
    given = problem(trials, num_gpus=2)
    each = given.seconds(trials[:3], num_gpus=1)
    jobs = [job(0, 1, 2, rank=0, start=1.0), job(3, 4, 5, rank=0, start=2.0)]
    placed = planned_again(jobs, given, free_from=(1.5 * each, 0.5 * each))
    assert sorted(trial_id for found in placed for trial_id in found.trial_ids) == [0, 1, 2, 3, 4, 5]
    assert {found.gpu_ids for found in placed} == {(0,), (1,)}
    assert all(found.start_seconds >= (1.5 if found.gpu_ids == (0,) else 0.5) * each for found in placed)
    # one after the other where they were would end at 3.5, without any move of a trial at 2.5
    assert max(found.end_seconds for found in placed) <= 2.5 * each * (1 + 1e-9)
    assert planned_again([], given, free_from=(0.0, 0.0)) == ()


@pytest.mark.parametrize("free_from", [(0.0, 0.0), (3.0, 1.0)])
def test_placing_again_is_deterministic_and_no_later(free_from: tuple[float, float]) -> None:
    trials = [trial(i, r=8 * (1 + i % 3), batch_size=1 + i % 2) for i in range(7)]
    given = problem(trials, num_gpus=2)
    jobs = [job(*range(place, 7, 3), rank=place % 2, start=float(place)) for place in range(3)]
    once = planned_again(jobs, given, free_from=free_from)
    assert once == planned_again(jobs, given, free_from=free_from)
    as_placed = [0.0, 0.0]
    for own in jobs:
        members = [trials[trial_id] for trial_id in own.trial_ids]
        rank = own.gpu_ids[0]
        as_placed[rank] = max(as_placed[rank], free_from[rank]) + given.seconds(members, num_gpus=1)
    assert max(found.end_seconds for found in once) <= max(as_placed) * (1 + 1e-9)
