"""One thread at a time computes with a base model, in the order that shares give."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from cohort.core.clock import ManualClock
from cohort.engine.turns.base_turns import BaseTurns
from cohort.scheduling.shares.records import WorkKind
from cohort.scheduling.shares.turns import TurnTaker

SWEEP, CLIENTS, SERVING = WorkKind.SWEEP, WorkKind.CLIENT_TRAINING, WorkKind.SERVING


def turns_of(clock: ManualClock, weights: dict[str, float] | None = None, **keys: float) -> BaseTurns:
    return BaseTurns(TurnTaker(weights), clock=clock.monotonic, **keys)


def in_threads(*acts: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)


def test_one_thread_computes_at_a_time_and_a_turn_in_a_turn_is_a_part_of_it() -> None:
    turns, inside, most = BaseTurns(), Counter[str](), list[int]()

    def work(name: str) -> None:
        for _ in range(50):
            with turns.turn(SWEEP, {name: 1}, name=name) as held, turns.turn(CLIENTS, {name: 1}) as inner:
                assert inner is held
                inside[name] += 1
                most.append(inside.total())
                inside[name] -= 1

    in_threads(*(lambda name=name: work(name) for name in "abcd"))
    assert set(most) == {1}
    assert turns.num_passes[SWEEP] == 200
    assert turns.num_passes[CLIENTS] == 0


def test_threads_that_come_back_at_once_have_turns_by_their_weights() -> None:
    clock = ManualClock()
    turns, order = turns_of(clock, {"heavy": 3.0, "light": 1.0}, grace_seconds=1e6), list[str]()
    is_held = threading.Event()

    def work(kind: WorkKind, tenant: str, count: int) -> None:
        is_held.wait()
        for number in range(count):
            with turns.turn(kind, {tenant: 10}) as held:
                clock.advance(1.0)
                order.append(tenant)
                held.follows = turns.ready(kind, {tenant: 10}) if number < count - 1 else None

    def begin() -> None:
        # until both wait
        with turns.turn(SERVING, {"other": 1}):
            is_held.set()
            while len(turns._claims) < 2:
                threading.Event().wait(0.001)

    in_threads(begin, lambda: work(SWEEP, "heavy", 90), lambda: work(CLIENTS, "light", 30))
    # until the first has all that it wants
    counted = Counter(order[:100])
    assert counted["heavy"] == pytest.approx(75, abs=2)


def test_who_does_not_come_back_is_waited_for_no_longer_than_said() -> None:
    turns = BaseTurns(TurnTaker({"gone": 1000.0}), grace_seconds=0.05)
    with turns.turn(SWEEP, {"gone": 1}) as held:
        held.follows = turns.ready(SWEEP, {"gone": 1})
    with turns.turn(CLIENTS, {"there": 1}):
        pass
    assert turns.num_passes[CLIENTS] == 1


@pytest.mark.parametrize(("pass_seconds", "most"), [(0.1, 2), (0.3, 1)])
def test_requests_compute_between_two_passes_of_a_turn(pass_seconds: float, most: int) -> None:
    clock = ManualClock()
    turns, order = turns_of(clock, max_pass_seconds=0.25), list[str]()
    in_turn, is_over = threading.Event(), threading.Event()

    def train() -> None:
        with turns.turn(SWEEP, {"sweep": 100}):
            in_turn.set()
            for _ in range(20):
                clock.advance(pass_seconds)
                order.append("pass")
                # requests are there by now: they ask in another thread
                while len(turns._claims) == 0 and not is_over.is_set():
                    threading.Event().wait(0.001)
                turns.give_way()
        is_over.set()

    def serve() -> None:
        in_turn.wait()
        while not is_over.is_set():
            with turns.turn(SERVING, {"requests": 1}):
                clock.advance(0.01)
                order.append("tokens")

    in_threads(train, serve)
    while order[-1] != "pass":
        order.pop()
    gaps = [len(gap) for gap in "".join("p" if one == "pass" else " " for one in order).split()]
    # the first one is let run, since nobody knew how long a pass takes
    assert max(gaps[1:]) <= most
    assert sum(gaps) == 20


def test_a_thread_without_a_turn_gives_way_to_nobody() -> None:
    turns = BaseTurns()
    turns.give_way()
    with turns.turn(SWEEP, {"a": 1}):
        in_threads(turns.give_way)


def test_an_error_in_a_turn_ends_it() -> None:
    turns = BaseTurns()
    with pytest.raises(ZeroDivisionError), turns.turn(SWEEP, {"a": 1}):
        raise ZeroDivisionError
    with turns.turn(SERVING, {"a": 1}):
        pass


def test_the_time_of_a_pass_is_charged_by_tokens_and_tells_what_a_token_takes() -> None:
    clock = ManualClock()
    turns = turns_of(clock)
    assert turns.seconds_per_token(SWEEP) == 0.0
    with turns.turn(SWEEP, {"a": 30, "b": 10, "idle": 0}) as held:
        held.tokens = {"a": 30, "b": 10}
        clock.advance(8.0)
    assert turns.seconds_per_token(SWEEP) == pytest.approx(0.2)
    assert turns.usage() == pytest.approx({("a", SWEEP): 6.0, ("b", SWEEP): 2.0})
    assert turns.leads(frozenset({"a", "b", "idle"})) == pytest.approx({"a": 6.0, "b": 2.0, "idle": 0.0})
