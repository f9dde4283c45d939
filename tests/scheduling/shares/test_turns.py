"""Shares, delays and latencies of turns on a simulated clock, and each rule by itself."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.core.errors import InputError
from cohort.scheduling.shares.records import ReadyWork, ShareSettings, WorkKind
from cohort.scheduling.shares.turns import TurnTaker
from cohort.scheduling.shares.verify import find_turn_faults

from .simulated_base import Demand, simulate

SWEEP, CLIENTS, SERVING = WorkKind.SWEEP, WorkKind.CLIENT_TRAINING, WorkKind.SERVING
WEIGHTS = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}


def work(kind: WorkKind, seconds: float = 0.1, **tokens: int) -> ReadyWork:
    return ReadyWork(name=kind.value, kind=kind, tokens=tokens, expected_seconds=seconds)


def two_hundred_jobs(seed: int) -> list[Demand]:
    chance = random.Random(seed)
    return [
        Demand(
            tenant=tenant,
            kind=chance.choice((SWEEP, CLIENTS)),
            num_rows=chance.randint(50, 200),
            row_tokens=chance.choice((64, 256, 1024)),
        )
        for tenant in WEIGHTS
        for _ in range(50)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_shares_of_200_jobs_are_within_two_percent_of_the_weights(seed: int) -> None:
    history = simulate(two_hundred_jobs(seed), weights=WEIGHTS)
    assert not find_turn_faults(history.passes, history.wanted, weights=WEIGHTS)
    # as long as all four want something
    until = min(wish.until_seconds for wish in history.wanted)
    had = history.seconds(until=until)
    for tenant, weight in WEIGHTS.items():
        assert had[tenant] / sum(had.values()) == pytest.approx(weight / 10, rel=0.02)


def test_a_restart_after_every_pass_changes_no_turn() -> None:
    # a tenant's own works may begin even again; with one kind each there is nothing to begin
    one_kind = [replace(demand, kind=SWEEP) for demand in two_hundred_jobs(0)]
    alike = [replace(demand) for demand in one_kind]
    assert simulate(one_kind, weights=WEIGHTS) == simulate(alike, weights=WEIGHTS, restart_every=1)


_demands = st.lists(
    st.builds(
        Demand,
        tenant=st.sampled_from("abcd"),
        kind=st.sampled_from(WorkKind),
        num_rows=st.integers(1, 60),
        row_tokens=st.sampled_from((1, 16, 200, 2000)),
        since=st.floats(0, 5),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(demands=_demands, restart_every=st.sampled_from((None, 1, 5)))
def test_any_history_passes_the_checker(demands: list[Demand], restart_every: int | None) -> None:
    history = simulate(demands, weights=WEIGHTS, restart_every=restart_every)
    assert not find_turn_faults(history.passes, history.wanted, weights=WEIGHTS)
    assert all(demand.num_rows == 0 for demand in demands)


@settings(max_examples=25, deadline=None)
@given(
    flood=st.integers(1, 60),
    since=st.floats(0, 8),
    kinds=st.tuples(st.sampled_from((SWEEP, CLIENTS)), st.sampled_from(WorkKind)),
)
def test_a_flood_delays_anothers_next_pass_by_one_pass_at_most(
    flood: int, since: float, kinds: tuple[WorkKind, WorkKind]
) -> None:
    flooding = [Demand(tenant="a", kind=kinds[0], num_rows=10, row_tokens=1024) for _ in range(flood)]
    few = [Demand(tenant="d", kind=kinds[1], num_rows=2, row_tokens=512, since=since + 0.3 * n) for n in range(5)]
    # d asks for less than its share, so at each time something is due to it
    history = simulate(flooding + few, weights={"a": 1.0, "d": 4.0})
    for own in few:
        begun = next(run for run in history.passes if run.end_seconds > own.since and "d" in run.seconds_by_tenant)
        waited = [run for run in history.passes if own.since < run.end_seconds <= begun.start_seconds]
        assert len(waited) <= 1


def test_a_flood_takes_no_turn_that_one_job_would_not_have() -> None:
    """Whether a tenant has one long job or 500 short ones, another that trains all along has the same passes."""

    def passes_of_d(jobs: list[Demand]) -> list[float]:
        steady = Demand(tenant="d", kind=SWEEP, num_rows=40, row_tokens=2048)
        history = simulate([steady, *jobs], weights={"a": 1.0, "d": 1.0})
        return [run.start_seconds for run in history.passes if "d" in run.seconds_by_tenant]

    one = [Demand(tenant="a", kind=CLIENTS, num_rows=5000, row_tokens=2048)]
    many = [Demand(tenant="a", kind=CLIENTS, num_rows=10, row_tokens=2048) for _ in range(500)]
    assert passes_of_d(one) == passes_of_d(many)


def test_an_idle_share_is_lent_and_taken_back_at_the_next_pass() -> None:
    lent = Demand(tenant="a", kind=SWEEP, num_rows=400, row_tokens=2048)
    back = Demand(tenant="b", kind=CLIENTS, num_rows=100, row_tokens=2048, since=20.0)
    history = simulate([lent, back], weights={"a": 1.0, "b": 1.0})
    alone = [run for run in history.passes if run.end_seconds <= 20.0]
    assert all(set(run.seconds_by_tenant) == {"a"} for run in alone)
    assert alone[-1].end_seconds > 19.7, "all of the time was lent"
    then = [run for run in history.passes if run.end_seconds > 20.0]
    assert "b" in then[1].seconds_by_tenant, "taken back at the next pass"
    # nothing of the lent time is asked back: they are even from here on, pass by pass
    assert [set(run.seconds_by_tenant) for run in then[1:21]] == [{"b"}, {"a"}] * 10


def test_a_pause_saves_up_no_turns() -> None:
    taker = TurnTaker()
    both = [work(SWEEP, a=100), work(CLIENTS, b=100)]
    turn = taker.next_turn(both)
    assert turn is not None
    assert turn.tenants == ("a",)
    taker.charge(turn, seconds=1.0, tokens={"a": 100})
    for _ in range(50):
        turn = taker.next_turn([work(SWEEP, a=100)])
        assert turn is not None
        taker.charge(turn, seconds=1.0, tokens={"a": 100})
    order = []
    for _ in range(6):
        turn = taker.next_turn(both)
        assert turn is not None
        order.append(turn.tenants[0])
        taker.charge(turn, seconds=1.0, tokens={turn.tenants[0]: 100})
    assert order == ["b", "a"] * 3


def test_no_pass_is_longer_than_the_bound_while_requests_wait() -> None:
    training = [Demand(tenant=tenant, kind=SWEEP, num_rows=40, row_tokens=3000) for tenant in "abc"]
    asks = [Demand(tenant="d", kind=SERVING, num_rows=3, row_tokens=8, since=0.2 * n) for n in range(40)]
    history = simulate(training + asks, weights=WEIGHTS, budget_tokens=16_000)
    assert not find_turn_faults(history.passes, history.wanted, weights=WEIGHTS)
    for run in history.passes:
        if run.requests_waited:
            assert run.end_seconds - run.start_seconds <= 0.25 + 1e-9
    assert any(run.end_seconds - run.start_seconds > 0.25 for run in history.passes), "else nothing was limited"


def test_serving_before_its_turn_costs_others_a_tenth_and_no_tenant_its_training() -> None:
    """A tenant of weight 1 among 41 asks all the time; its own sweep still has its share."""
    weights = {f"t{number}": 1.0 for number in range(40)} | {"d": 1.0}
    training = [Demand(tenant=name, kind=SWEEP, num_rows=30, row_tokens=2048) for name in weights]
    asks = Demand(tenant="d", kind=SERVING, num_rows=100_000, row_tokens=8)
    history = simulate([*training, asks], weights=weights, settings=ShareSettings(ride_seconds=0.0), budget_tokens=3000)
    steps = [run for run in history.passes if run.kind is SWEEP][: 41 * 25]
    early = [run for run in history.passes if run.before_its_turn and run.end_seconds <= steps[-1].end_seconds]
    # a pass of 40 ms cannot be made smaller here: the bound is 40 of 40 + 142
    assert sum(run.end_seconds - run.start_seconds for run in early) <= 0.23 * steps[-1].end_seconds
    # half of d's 25 turns went to its requests, as works of one tenant have equal parts
    assert sum("d" in run.seconds_by_tenant for run in steps) >= 12


def test_works_of_one_tenant_have_equal_parts() -> None:
    taker = TurnTaker()
    ready = [work(SERVING, 0.01, a=1), work(SWEEP, 0.1, a=100)]
    took = {SERVING: 0.0, SWEEP: 0.0}
    for _ in range(500):
        turn = taker.next_turn(ready)
        assert turn is not None
        seconds = turn.work.expected_seconds
        took[turn.work.kind] += seconds
        taker.charge(turn, seconds=seconds, tokens=turn.work.tokens)
    assert took[SERVING] == pytest.approx(took[SWEEP], abs=0.2)


def test_a_packed_pass_is_charged_by_tokens_and_one_without_tokens_in_equal_parts() -> None:
    taker = TurnTaker()
    turn = taker.next_turn([work(CLIENTS, a=300, b=100)])
    assert turn is not None
    assert (turn.tenants, turn.max_seconds) == (("a", "b"), None)
    assert taker.charge(turn, seconds=0.4, tokens={"a": 300, "b": 100}) == {"a": pytest.approx(0.3), "b": 0.1}
    assert taker.charge(turn, seconds=0.4, tokens={"a": 0, "b": 0}) == {"a": 0.2, "b": 0.2}


def test_those_far_ahead_do_not_ride_while_others_wait_for_another_pass() -> None:
    taker = TurnTaker({"a": 1.0, "b": 1.0, "c": 1.0})
    packed, other = work(CLIENTS, a=10, b=10), work(SWEEP, c=10)
    turn = taker.next_turn([packed])
    assert turn is not None
    taker.charge(turn, seconds=1.0, tokens={"b": 10})
    turn = taker.next_turn([packed, other])
    assert turn is not None
    assert turn.tenants == ("a",)
    # with nobody else waiting there is nobody to give way to
    turn = taker.next_turn([packed])
    assert turn is not None
    assert turn.tenants == ("a", "b")


def test_nothing_to_run_makes_all_even() -> None:
    taker = TurnTaker()
    turn = taker.next_turn([work(SWEEP, a=1)])
    assert turn is not None
    taker.charge(turn, seconds=100.0, tokens={"a": 1})
    assert taker.next_turn([]) is None
    assert taker.accounts.lead("a") == 0.0


def test_the_record_is_json_and_keeps_every_bit() -> None:
    taker = TurnTaker(WEIGHTS)
    for number in range(1, 20):
        turn = taker.next_turn([work(SWEEP, a=7, b=3), work(SERVING, c=1, d=2)])
        assert turn is not None
        taker.charge(turn, seconds=0.1 / number, tokens=turn.work.tokens)
    record = taker.to_record()
    again = TurnTaker.from_record(json.loads(json.dumps(record)), weights=WEIGHTS)
    assert again.to_record() == record
    assert [again.accounts.tag(name) for name in "abcd"] == [taker.accounts.tag(name) for name in "abcd"]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_is_a_finite_number_above_0(weight: float) -> None:
    with pytest.raises(InputError, match="tenant 'a'"):
        TurnTaker({"a": weight})


def test_settings_name_all_that_is_wrong() -> None:
    with pytest.raises(InputError) as caught:
        ShareSettings(max_pass_seconds=0, floor_share=2, ride_seconds=-1)
    assert len(caught.value.problems) == 3
