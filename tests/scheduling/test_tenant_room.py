"""Room of an executor by the shares of tenants."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.scheduling.admission import Admission, Capacity, Request, admit
from cohort.scheduling.tenant_room import arranged

ROOM = Capacity(rank_rows=128, num_slots=4, tokens_per_step=1000)


def request(trial_id: int, *, r: int = 16, priority: int = 0, arrival: int = 0, length: float = 10) -> Request:
    return Request(trial_id=trial_id, r=r, batch_size=1, mean_length=length, priority=priority, arrival=arrival)


def admission(
    resident: list[Request],
    waiting: list[Request],
    tenants: Mapping[int, str],
    *,
    leads: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    capacity: Capacity = ROOM,
) -> Admission:
    names = set(tenants.values())
    found = arranged(
        [*resident, *waiting],
        tenants=tenants,
        residents=frozenset(request.trial_id for request in resident),
        capacity=capacity,
        weights={name: (weights or {}).get(name, 1.0) for name in names},
        leads={name: (leads or {}).get(name, 0.0) for name in names},
    )
    return admit(found, found[: len(resident)], capacity)


def test_a_flood_leaves_room_to_a_tenant_that_comes() -> None:
    flood = [request(key) for key in range(4)]
    more = [request(key) for key in range(4, 40)]
    tenants = dict.fromkeys(range(40), "flood") | {40: "late", 41: "late", 42: "late"}
    late = [request(key, arrival=1) for key in (40, 41, 42)]
    found = admission(flood, [*more, *late], tenants)
    assert found.admitted == (40, 41)
    assert found.evicted == (3, 2)


def test_what_is_lent_is_not_taken_back_for_one_that_has_its_share() -> None:
    tenants = dict.fromkeys(range(3), "a") | dict.fromkeys((3, 4), "b")
    inside = [request(key) for key in range(4)]
    # with weights of 3 and 1 each has its share
    found = admission(inside, [request(4)], tenants, weights={"a": 3.0, "b": 1.0})
    assert found == Admission()
    assert admission(inside, [request(4)], tenants).admitted == (4,)


def test_rank_rows_and_tokens_are_shared_as_slots_are() -> None:
    tenants = {0: "a", 1: "a", 2: "b"}
    wide = [request(0, r=64), request(1, r=64)]
    assert admission(wide, [request(2, r=64)], tenants).evicted == (1,)
    long = [request(0, length=500), request(1, length=500)]
    assert admission(long, [request(2, length=500)], tenants).evicted == (1,)
    # a first one that is larger than the share of its tenant has room all the same
    assert admission([request(0)], [request(2, r=112)], tenants).admitted == (2,)


def test_priorities_order_the_tasks_of_one_tenant_alone() -> None:
    tenants = {0: "a", 1: "a", 2: "b", 3: "b", 4: "a", 5: "b"}
    inside = [request(key) for key in range(4)]
    urgent = request(4, priority=9)
    found = admission(inside, [urgent], tenants)
    assert found.admitted == (4,)
    assert found.evicted == (1,)


def test_more_tenants_than_slots_take_turns_and_keep_theirs_for_a_while() -> None:
    inside = [request(key) for key in range(4)]
    tenants = {key: f"tenant-{key}" for key in range(5)}
    leads = {f"tenant-{key}": 0.5 for key in range(4)}
    assert admission(inside, [request(4)], tenants, leads=leads) == Admission()
    found = admission(inside, [request(4)], tenants, leads=leads | {"tenant-2": 3.0})
    assert found.admitted == (4,)
    assert found.evicted == (2,)
