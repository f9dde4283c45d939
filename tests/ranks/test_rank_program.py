"""A rank's side of the connection: builds its executor, carries out calls, reports what they raised."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.errors import CohortError, InputError, Problem, SampleTooLargeError
from cohort.core.memory_records import PassKind
from cohort.data.tokenised import TokenisedRows
from cohort.ranks import rank_program
from cohort.ranks.calls import Call, Standing, portable, verb
from cohort.ranks.rank_link import Release, Sent
from cohort.ranks.rank_program import Served, serve, serve_setup
from cohort.ranks.transport import Channel
from tests.training.small_models import random_rows


class Memory:
    """What answers questions about memory alone."""

    def __init__(self) -> None:
        self._shortages: list[Any] = [("first",), ()]

    @verb
    def fits(self, spec: str) -> bool:
        return spec == "small"

    @verb
    def count(self, rows: TokenisedRows) -> int:
        return len(rows)

    @verb
    def fail(self) -> None:
        raise CohortError("a bad row") from ValueError("NaN")

    def standing(self) -> Standing:
        shortages = self._shortages.pop(0) if self._shortages else ()
        return Standing(shortages=shortages, token_budgets={PassKind.TRAIN: 64}, num_recomputed=5)

    def make_room(self) -> bool:
        return False


@pytest.fixture
def channel() -> Iterator[Channel]:
    """The way to a rank that serves in a thread."""
    ours, theirs = Pipe()
    server = threading.Thread(target=serve, args=(Channel(theirs), Served(Memory())))
    server.start()
    channel = Channel(ours)
    yield channel
    channel.close()
    # a closed connection ends the rank
    server.join(60)
    assert not server.is_alive()


def asked(channel: Channel, call: Call, **new: Any) -> Any:
    channel.send(Sent(call=call, rows=new.get("rows", {}), new_rows=new.get("new_rows", {})))
    return channel.receive()


def test_calls_are_carried_out_in_order_with_what_the_rank_has_to_say(channel: Channel) -> None:
    first = asked(channel, Call.of(Memory.fits, "small"))
    assert (first.value, first.error, first.standing.shortages) == (True, None, ("first",))
    assert (first.standing.token_budgets, first.standing.num_recomputed) == ({PassKind.TRAIN: 64}, 5)
    assert asked(channel, Call.of(Memory.fits, "large")).standing.shortages == ()


def test_rows_are_kept_by_their_numbers(channel: Channel) -> None:
    count = Call(verb="count", arguments={})
    first = asked(channel, count, rows={"rows": 4}, new_rows={4: random_rows(2)})
    assert first.value == asked(channel, count, rows={"rows": 4}).value == 2
    assert isinstance(asked(channel, count, rows={"rows": 5}).error, KeyError)


def test_a_rank_goes_on_after_a_call_that_raised(channel: Channel) -> None:
    reply = asked(channel, Call.of(Memory.fail))
    assert (str(reply.error), reply.value) == ("a bad row", None)
    assert isinstance(reply.cause, ValueError)
    assert asked(channel, Call.of(Memory.fits, "large")).value is False
    assert "Memory has no verb standing" in str(asked(channel, Call(verb="standing", arguments={})).error)


def test_an_error_that_nothing_waits_for_ends_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks would wait for it in the middle of a pass."""

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(rank_program, "_leave", leave)
    ours, theirs = Pipe()
    caller = Channel(ours)
    for call in (Call.of(Memory.fits, "small"), Call.of(Memory.fail)):
        caller.send(Sent(call=replace(call, is_answered=False), rows={}, new_rows={}))
    with pytest.raises(SystemExit, match="1"):
        serve(Channel(theirs), Served(Memory()))
    assert str(caller.receive().error) == "a bad row"


def test_errors_travel_with_what_they_carry() -> None:
    problem = Problem(where="r", found="3", allowed="4", hint="Write 4.")
    sent = portable(SampleTooLargeError([problem], 7))
    ours, theirs = Pipe()
    Channel(ours).send(sent)
    found = Channel(theirs).receive()
    assert type(found) is SampleTooLargeError
    assert found.problems == (problem,)
    assert isinstance(found, InputError)


@pytest.mark.parametrize("is_in_group", [False, True])
def test_a_rank_of_a_group_frees_its_graphs_before_it_leaves(*, is_in_group: bool) -> None:
    """NCCL would wait for graphs that hold its messages."""
    freed: list[bool] = []
    tenant = SimpleNamespace(make_room=lambda: freed.append(True))
    setup: Any = SimpleNamespace(
        is_in_group=is_in_group, device="cpu", threads=torch.get_num_threads(), rows=(), build=lambda: tenant
    )
    ours, theirs = Pipe()
    first = Channel(ours)
    first.send(Release())
    serve_setup(Channel(theirs), setup)
    assert first.receive().error is None
    assert len(freed) == is_in_group


def test_a_rank_outlives_the_reader_of_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ours, theirs = Pipe()
    reached: list[str] = []

    def serve_printing(*_: object) -> None:
        # as a metric of the user's may
        print("x" * 100_000, flush=True)
        reached.append("served")

    monkeypatch.setattr(sys, "argv", ["rank_program", str(os.dup(theirs.fileno()))])
    for name in ("ignore_signals", "die_with_parent"):
        monkeypatch.setattr(rank_program, name, lambda: None)
    monkeypatch.setattr(rank_program, "serve_setup", serve_printing)
    monkeypatch.setattr(rank_program, "_leave", lambda status: reached.append(f"left with {status}"))
    with os.fdopen(writing, "w") as closed, monkeypatch.context() as patch, theirs:
        patch.setattr(sys, "stdout", closed)
        Channel(ours).send("a setup")
        rank_program.main()
    assert reached == ["served", "left with 0"]
