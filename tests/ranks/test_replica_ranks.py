"""Ranks that work by themselves: asked at the same time, every answer awaited, and what they say kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cohort.core.memory_records import PassKind
from cohort.ranks.commands import Command, Fits, Reply, Step
from cohort.ranks.replica_ranks import ReplicaRanks


class Link:
    """A rank with its answers, the next one first; notes when it is asked and awaited."""

    opens_gpu_memory = True

    def __init__(self, rank: int, log: list[str], *replies: Reply) -> None:
        self.rank, self._log, self._replies = rank, log, list(replies)

    def ask(self, command: object) -> None:
        self._log.append(f"{type(command).__name__} to {self.rank}")

    def answer(self) -> Reply:
        self._log.append(f"{self.rank} answers")
        return self._replies.pop(0)

    def do(self, command: Command) -> Reply:
        self.ask(command)
        return self.answer()

    def close(self) -> None:
        self._log.append(f"{self.rank} closed")


def ranks_of(*links: Link, room: int = 0) -> ReplicaRanks:
    left, own = [True] * room, list[Any](links)
    return ReplicaRanks(own, make_room=lambda: bool(left) and left.pop())


def test_all_work_at_the_same_time_and_every_answer_is_taken() -> None:
    log: list[str] = []
    failing = Reply(error=ValueError("a bad row"), token_budgets={PassKind.TRAIN: 5}, num_recomputed=2)
    ranks = ranks_of(Link(1, log, failing), Link(2, log, Reply(value="two", num_recomputed=1)))

    def local() -> str:
        log.append("local")
        return "zero"

    found, error = ranks.together(PassKind.TRAIN, dict.fromkeys((1, 2), Step(trial_ids=())), local=local)
    assert found == {0: "zero", 2: "two"}
    assert str(error) == "a bad row"
    assert log == ["Step to 1", "Step to 2", "local", "1 answers", "2 answers"]
    assert ranks.token_budgets[1] == {PassKind.TRAIN: 5}
    assert ranks.num_recomputed == 3


def test_a_rank_without_memory_is_asked_again_while_room_is_made() -> None:
    short = Reply(error=torch.OutOfMemoryError("CUDA out of memory"))
    log: list[str] = []
    ranks = ranks_of(Link(1, log, short, short, Reply(value="done")), room=2)
    assert ranks.together(PassKind.TRAIN, {1: Step(trial_ids=())}, local=None) == ({1: "done"}, None)
    # with nothing left to free it is an error
    ranks = ranks_of(Link(1, log, short, short), room=1)
    found, error = ranks.together(PassKind.TRAIN, {1: Step(trial_ids=())}, local=None)
    assert (found, isinstance(error, torch.OutOfMemoryError)) == ({}, True)


def test_one_that_raised_raises_here() -> None:
    log: list[str] = []
    command: Any = Fits(spec=None)  # type: ignore[arg-type]
    cause = OSError("no file")
    ranks = ranks_of(Link(1, log, Reply(error=ValueError("no"), cause=cause), Reply(value=True)))
    with pytest.raises(ValueError, match="no") as raised:
        ranks.ask_all(command)
    assert raised.value.__cause__ is cause
    assert ranks.ask(1, command) is True
    assert len(ranks) == 1
    ranks.close()
    assert log[-1] == "1 closed"
