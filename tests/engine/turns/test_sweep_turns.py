"""Who takes the next step of an executor on a base that is shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.turns.base_turns import BaseTurns
from cohort.engine.turns.step_turns import EveryoneSteps, ReadyStep
from cohort.engine.turns.sweep_turns import SweepTurns
from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.shares.records import ReadyWork, Turn, WorkKind
from cohort.scheduling.shares.turns import TurnTaker


def trial(key: int, tenant: str, tokens: int = 10) -> ReadyStep:
    return ReadyStep(key=key, tenant=tenant, tokens=tokens)


def steps(turns: SweepTurns, clock: ManualClock, ready: list[ReadyStep], count: int) -> list[list[int]]:
    tokens = {one.key: one.tokens for one in ready}
    found = []
    for _ in range(count):
        with turns.step(ready) as keys:
            clock.advance(sum(tokens[key] for key in keys) / 100)
            found.append(keys)
    return found


def turns_of(clock: ManualClock, weights: dict[str, float], *, fill_tokens: int) -> SweepTurns:
    return SweepTurns(BaseTurns(TurnTaker(weights), clock=clock.monotonic), fill_tokens=fill_tokens)


def test_trials_of_one_tenant_step_together_and_those_of_an_executor_of_its_own() -> None:
    clock, ready = ManualClock(), [trial(key, "a") for key in (3, 1, 2)]
    assert steps(turns_of(clock, {}, fill_tokens=10), clock, ready, 2) == [[1, 2, 3]] * 2
    with EveryoneSteps().step(ready) as keys:
        assert keys == [1, 2, 3]


def test_tenants_have_their_shares_of_tokens() -> None:
    clock, weights = ManualClock(), {"a": 4.0, "b": 2.0, "c": 1.0, "d": 1.0}
    ready = [trial(key, tenant, tokens=7 + key) for key, tenant in enumerate("aabbccdd")]
    found = steps(turns_of(clock, weights, fill_tokens=16), clock, ready, 4000)
    tokens = Counter[str]()
    for keys in found:
        for key in keys:
            tokens["aabbccdd"[key]] += ready[key].tokens
    for tenant, weight in weights.items():
        assert tokens[tenant] / tokens.total() == pytest.approx(weight / 8, rel=0.02)
    # of one tenant none is left behind
    each = Counter(key for keys in found for key in keys)
    assert each[0] == pytest.approx(each[1], abs=1)


def test_a_step_has_at_least_one_trial_and_room_is_filled() -> None:
    clock = ManualClock()
    ready = [trial(0, "a", 100), trial(1, "b", 100), trial(2, "b", 30)]
    assert all(len(keys) == 1 for keys in steps(turns_of(clock, {}, fill_tokens=50), clock, ready, 6))
    assert all(len(keys) == 3 for keys in steps(turns_of(clock, {}, fill_tokens=500), clock, ready, 3))


def test_steps_are_short_while_requests_wait() -> None:
    clock = ManualClock()
    base = BaseTurns(clock=clock.monotonic)
    turns = SweepTurns(base, fill_tokens=1000)
    ready = [trial(key, "a", 10) for key in range(8)]
    # a token takes 10 ms, so 25 of them the 250 ms
    assert steps(turns, clock, ready, 1) == [list(range(8))]
    with base.turn(WorkKind.SERVING, {"b": 1}) as held:
        clock.advance(100.0)
        held.follows = base.ready(WorkKind.SERVING, {"b": 1})
    assert [len(keys) for keys in steps(turns, clock, ready, 1)] == [2]


def test_room_is_arranged_among_tenants_alone() -> None:
    turns = turns_of(ManualClock(), {}, fill_tokens=10)
    requests = [Request(trial_id=key, r=16, batch_size=1, mean_length=10, priority=key) for key in range(2)]
    room = Capacity(rank_rows=64, num_slots=4, tokens_per_step=100)
    same = {0: "a", 1: "a"}
    assert turns.arrange(requests, tenants=same, residents=frozenset(), capacity=room) == requests
    found = turns.arrange(requests, tenants={0: "a", 1: "b"}, residents=frozenset(), capacity=room)
    assert [request.priority for request in found] == [2, 2]


@pytest.mark.parametrize("requests_every", [0, 1, 3])
def test_evaluations_and_requests_between_steps_leave_shares_as_they_are(requests_every: int) -> None:
    """What one tenant has computed for it between two steps is no sign that the others want nothing."""
    clock, weights = ManualClock(), {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    base = BaseTurns(TurnTaker(weights), clock=clock.monotonic)
    turns = SweepTurns(base, fill_tokens=16)
    ready = [trial(key, tenant, tokens=7 + key) for key, tenant in enumerate("abcd")]
    requests = [Request(trial_id=one.key, r=16, batch_size=1, mean_length=one.tokens) for one in ready]
    room = Capacity(rank_rows=64, num_slots=4, tokens_per_step=100)
    tenants, taken = {one.key: one.tenant for one in ready}, Counter[int]()
    for number in range(6000):
        turns.arrange(requests, tenants=tenants, residents=frozenset(tenants), capacity=room)
        with turns.step(ready) as keys:
            clock.advance(sum(ready[key].tokens for key in keys) / 100)
        taken.update(keys)
        # a checkpoint is written: longer than the base stays idle for a thread that comes back
        clock.advance(5.0)
        if requests_every and number % requests_every == 0:
            with base.turn(WorkKind.SERVING, {"requests": 1}):
                clock.advance(0.2)
        for key in keys:
            # small batches are evaluated after more steps; an evaluation takes as long as some of them
            if taken[key] % (5, 10, 20, 10)[key] == 0:
                with turns.other(tenants[key]):
                    clock.advance(0.4)
    had = {name: seconds for (name, kind), seconds in base.usage().items() if kind is WorkKind.SWEEP}
    for tenant, weight in weights.items():
        assert had[tenant] / sum(had.values()) == pytest.approx(weight / 10, rel=0.02), tenant


def test_a_loop_without_tasks_keeps_no_place() -> None:
    clock = ManualClock()
    base = BaseTurns(clock=clock.monotonic)
    turns = SweepTurns(base, fill_tokens=16)
    request = Request(trial_id=0, r=16, batch_size=1, mean_length=10)
    room = Capacity(rank_rows=64, num_slots=4, tokens_per_step=100)
    turns.arrange([request], tenants={0: "a"}, residents=frozenset(), capacity=room)
    with turns.step([trial(0, "a")]):
        clock.advance(1.0)
    turns.rest()
    assert not base.is_busy
    # what others have meanwhile is not owed to it
    with base.turn(WorkKind.CLIENT_TRAINING, {"b": 1}):
        clock.advance(100.0)
    with base.turn(WorkKind.CLIENT_TRAINING, {"b": 1}):
        clock.advance(100.0)
    assert base.leads(frozenset("ab")) == {"a": 0.0, "b": 100.0}


class NotingTaker(TurnTaker):
    """Notes between which works it was asked to choose last, and who wanted something besides."""

    def next_turn(self, ready: Sequence[ReadyWork], *, also_wanting: Collection[str] = ()) -> Turn | None:
        self.noted = [set(work.tokens) for work in ready], set(also_wanting)
        return super().next_turn(ready, also_wanting=also_wanting)


def test_a_pass_is_not_chosen_for_a_tenant_without_room_in_it() -> None:
    taker = NotingTaker()
    turns = SweepTurns(BaseTurns(taker, clock=ManualClock().monotonic), fill_tokens=1000)
    tenants = {0: "a", 1: "z"}
    requests = [Request(trial_id=key, r=16, batch_size=1, mean_length=10) for key in tenants]
    # the bank is full of the first tenant's trial, and the second one's waits
    room = Capacity(rank_rows=16, num_slots=1, tokens_per_step=100)
    turns.arrange(requests, tenants=tenants, residents=frozenset({0}), capacity=room)
    with turns.step([trial(0, "a")]):
        assert taker.noted == ([{"a"}], {"a", "z"}), "z keeps what it is behind by, and this is not its pass"
    with turns.other("a"):
        assert taker.noted == ([{"a"}], {"a", "z"})
