"""A rank's side of the connection: builds its executor, carries out commands, reports what they raised."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.errors import CohortError, InputError, Problem, SampleTooLargeError
from cohort.core.memory_records import PassKind
from cohort.ranks import rank_server
from cohort.ranks.commands import Fits, Rank, RankSetup, Release, Rows
from cohort.ranks.rank_executor import RankExecutor
from cohort.ranks.rank_server import build_rank, portable, serve, serve_setup
from cohort.ranks.transport import Channel
from cohort.training.executor_settings import ExecutorSettings
from tests.training.small_models import random_rows, save_llama

SIZES = ExecutorSettings(num_slots=2, num_rank_rows=16, token_budget=512, evaluation_token_budget=512)


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A command that raises."""

    error: BaseException
    cause: BaseException | None = None

    def run(self, rank: Rank) -> None:
        raise self.error from self.cause


@pytest.fixture
def served() -> Iterator[tuple[Channel, Rank]]:
    """A rank that serves in a thread, with an executor that answers questions about memory alone."""
    shortages = [("first",), ()]
    executor: Any = SimpleNamespace(
        fits=lambda spec: spec == "small",
        take_shortages=lambda: shortages.pop(0) if shortages else (),
        token_budgets={PassKind.TRAIN: 64},
        num_recomputed=5,
    )
    rank = Rank(executor=executor)
    ours, theirs = Pipe()
    server = threading.Thread(target=serve, args=(Channel(theirs), rank))
    server.start()
    channel = Channel(ours)
    yield channel, rank
    channel.close()
    # a closed connection ends the rank
    server.join(60)
    assert not server.is_alive()


def asked(channel: Channel, command: Any) -> Any:
    channel.send(command)
    return channel.receive()


def test_commands_are_carried_out_in_order_with_what_the_rank_has_to_say(served: tuple[Channel, Rank]) -> None:
    channel, rank = served
    spec: Any = "small"
    first = asked(channel, Fits(spec=spec))
    assert (first.value, first.error, first.shortages) == (True, None, ("first",))
    assert (first.token_budgets, first.num_recomputed) == ({PassKind.TRAIN: 64}, 5)
    second = asked(channel, Rows(number=4, rows=random_rows(2)))
    assert (second.value, second.shortages) == (None, ())
    assert list(rank.rows) == [4]


def test_a_rank_goes_on_after_a_command_that_raised(served: tuple[Channel, Rank]) -> None:
    channel, _ = served
    reply = asked(channel, Failing(error=CohortError("a bad row"), cause=ValueError("NaN")))
    assert (str(reply.error), reply.value) == ("a bad row", None)
    assert isinstance(reply.cause, ValueError)
    spec: Any = "large"
    assert asked(channel, Fits(spec=spec)).value is False


def test_errors_travel_with_what_they_carry() -> None:
    problem = Problem(where="r", found="3", allowed="4", hint="Write 4.")
    sent = portable(SampleTooLargeError([problem], 7))
    ours, theirs = Pipe()
    Channel(ours).send(sent)
    found = Channel(theirs).receive()
    assert type(found) is SampleTooLargeError
    assert found.problems == (problem,)
    assert isinstance(found, InputError)


def test_errors_that_cannot_travel_arrive_as_their_words() -> None:
    class LocalError(Exception):
        pass

    class TwoPartsError(RuntimeError):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} {second}")

    for error, words in ((LocalError("no GPU"), "LocalError: no GPU"), (TwoPartsError("a", "b"), "TwoPartsError: a b")):
        assert str(portable(error)) == words


def test_a_rank_is_built_as_rank_0_has_it(tmp_path: Path) -> None:
    save_llama(tmp_path)
    rows = random_rows(4)
    threads = torch.get_num_threads()
    setup = RankSetup(
        rank=1,
        model_directory=str(tmp_path),
        device="cpu",
        dtype="float32",
        target_linears={"model.layers.0.self_attn.q_proj": (48, 48)},
        settings=SIZES,
        memory_limit_bytes=None,
        train_rows=rows,
        threads=threads,
    )
    rank = build_rank(setup)
    assert rank.rows[0] is rows
    assert isinstance(rank.executor, RankExecutor)
    assert rank.executor.bank.num_slots == SIZES.num_slots
    assert list(rank.executor.bank.layout.columns) == ["model.layers.0.self_attn.q_proj"]
    assert rank.executor.decoder.dtype == torch.float32
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("group", [None, "a group"])
def test_a_rank_of_a_group_frees_its_graphs_before_it_leaves(
    group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL would wait for graphs that hold its messages."""
    freed: list[bool] = []
    executor: Any = SimpleNamespace(make_room=lambda: freed.append(True))
    monkeypatch.setattr(rank_server, "build_rank", lambda setup: Rank(executor=executor))
    ours, theirs = Pipe()
    first, setup = Channel(ours), SimpleNamespace(group=group)
    first.send(Release())
    serve_setup(Channel(theirs), setup)  # type: ignore[arg-type]
    assert first.receive().error is None
    assert len(freed) == (group is not None)
