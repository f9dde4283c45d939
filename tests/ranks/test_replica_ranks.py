"""Ranks that work by themselves: asked at the same time, every answer awaited, and what they say kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cohort.core.memory_records import PassKind
from cohort.ranks.calls import Call, Reply, Standing, verb
from cohort.ranks.replica_ranks import ReplicaRanks


class Local:
    """Rank 0."""

    def __init__(self, log: list[str], *, room: int = 0) -> None:
        self._log, self._room = log, [True] * room

    @verb
    def step(self) -> str:
        self._log.append("local")
        return "zero"

    def make_room(self) -> bool:
        return bool(self._room) and self._room.pop()


STEP = Call.of(Local.step)


class Link:
    """A rank with its answers, the next one first; notes when it is asked and awaited."""

    opens_gpu_memory = True

    def __init__(self, rank: int, log: list[str], *replies: Reply) -> None:
        self.rank, self._log, self._replies = rank, log, list(replies)

    def ask(self, call: Call) -> None:
        self._log.append(f"{call.verb} to {self.rank}")

    def answer(self) -> Reply:
        self._log.append(f"{self.rank} answers")
        return self._replies.pop(0)

    def close(self) -> None:
        self._log.append(f"{self.rank} closed")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def ranks_of(log: list[str]) -> Callable[..., ReplicaRanks]:
    def ranks(*replies: tuple[Reply, ...], room: int = 0) -> ReplicaRanks:
        local: Any = Local(log, room=room)
        links: Any = [Link(rank, log, *own) for rank, own in enumerate(replies, 1)]
        return ReplicaRanks(local, links)

    return ranks


def test_all_work_at_the_same_time_and_every_answer_is_taken(
    ranks_of: Callable[..., ReplicaRanks], log: list[str]
) -> None:
    standing = Standing(token_budgets={PassKind.TRAIN: 5}, num_recomputed=2)
    failing = Reply(error=ValueError("a bad row"), standing=standing, seconds=3.0)
    ranks = ranks_of((failing,), (Reply(value="two", standing=Standing(num_recomputed=1)),))
    found, error = ranks.together(dict.fromkeys((0, 1, 2), STEP), PassKind.TRAIN)
    assert found == {0: "zero", 2: "two"}
    assert str(error) == "a bad row"
    assert log == ["step to 1", "step to 2", "local", "1 answers", "2 answers"]
    assert ranks.token_budgets[0] == {PassKind.TRAIN: 5}
    assert ranks.num_recomputed == 3
    assert ranks.work[1].train_seconds == 3.0


def test_what_runs_no_pass_is_no_work(ranks_of: Callable[..., ReplicaRanks]) -> None:
    ranks = ranks_of((Reply(value=True, seconds=3.0),))
    assert ranks.together({1: STEP}, None) == ({1: True}, None)
    assert not any(work.busy_seconds for work in ranks.work)


def test_a_rank_without_memory_is_asked_again_while_room_is_made(ranks_of: Callable[..., ReplicaRanks]) -> None:
    short = Reply(error=torch.OutOfMemoryError("CUDA out of memory"))
    ranks = ranks_of((short, short, Reply(value="done")), room=2)
    assert ranks.together({1: STEP}, PassKind.TRAIN) == ({1: "done"}, None)
    # with nothing left to free it is an error
    ranks = ranks_of((short, short), room=1)
    found, error = ranks.together({1: STEP}, PassKind.TRAIN)
    assert (found, isinstance(error, torch.OutOfMemoryError)) == ({}, True)


def test_one_that_raised_raises_here(ranks_of: Callable[..., ReplicaRanks], log: list[str]) -> None:
    cause = OSError("no file")
    ranks = ranks_of((Reply(error=ValueError("no"), cause=cause), Reply(value=True)))
    with pytest.raises(ValueError, match="no") as raised:
        ranks.ask_all(STEP)
    assert raised.value.__cause__ is cause
    assert [ranks.ask(1, STEP), ranks.ask(0, STEP)] == [True, "zero"]
    ranks.close()
    assert log[-1] == "1 closed"
