"""The checker sees each kind of fault: a history that is wrong in one way has one fault."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.scheduling.shares.records import ShareSettings, WorkKind
from cohort.scheduling.shares.verify import PassRun, Wanted, find_turn_faults

WEIGHTS = {"a": 1.0, "b": 1.0}


def run(start: float, end: float, tenant: str, *, kind: WorkKind = WorkKind.SWEEP, requests: bool = False) -> PassRun:
    return PassRun(
        start_seconds=start,
        end_seconds=end,
        kind=kind,
        seconds_by_tenant={tenant: end - start},
        requests_waited=requests,
    )


def faults(passes: Sequence[PassRun], *wanted: Wanted) -> tuple[str, ...]:
    return find_turn_faults(passes, wanted, weights=WEIGHTS, settings=ShareSettings(ride_seconds=0.0))


BOTH = [Wanted(tenant=tenant, since_seconds=0.0, until_seconds=4.0) for tenant in "ab"]


def test_turn_by_turn_is_right() -> None:
    assert not faults([run(n, n + 1, "ab"[n % 2]) for n in range(4)], *BOTH)


def test_three_turns_in_a_row_are_too_many() -> None:
    (fault,) = faults([run(0, 1, "a"), run(1, 2, "a"), run(2, 3, "a"), run(3, 4, "b")], *BOTH)
    assert "drift apart by 3" in fault


def test_shares_count_only_while_both_wait() -> None:
    late = Wanted(tenant="b", since_seconds=3.0, until_seconds=4.0)
    assert not faults([run(0, 1, "a"), run(1, 2, "a"), run(2, 3, "a"), run(3, 4, "b")], BOTH[0], late)


def test_standing_still_is_a_fault_only_while_somebody_waits() -> None:
    (fault,) = faults([run(0, 1, "a"), run(2, 3, "a")], BOTH[0])
    assert "nothing runs from 1" in fault
    assert not faults([run(0, 1, "a"), run(2, 3, "a")], Wanted(tenant="a", since_seconds=2.0, until_seconds=3.0))


def test_passes_that_overlap() -> None:
    (fault,) = faults([run(0, 1, "a"), run(0.5, 1.5, "a")], BOTH[0])
    assert "before the one before it ends" in fault


def test_a_pass_that_is_not_charged() -> None:
    free = PassRun(
        start_seconds=0, end_seconds=1, kind=WorkKind.SWEEP, seconds_by_tenant={"a": 0.5}, requests_waited=False
    )
    (fault,) = faults([free])
    assert "0.5 s were charged" in fault


def test_requests_that_wait_for_two_passes_of_200_ms() -> None:
    served = run(0, 0.1, "b", kind=WorkKind.SERVING)
    trained = [run(0.1, 0.3, "a", requests=True), run(0.3, 0.5, "a", requests=True)]
    (fault,) = faults([served, *trained])
    assert "requests wait" in fault
    # one that cannot be made smaller may be longer, right after serving
    assert not faults([served, run(0.1, 0.9, "a", requests=True)])
