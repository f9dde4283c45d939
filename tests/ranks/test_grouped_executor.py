"""A group as the user's process sees it: asked together, answered together, ended when one rank is lost or alone."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import RankLostError
from cohort.core.events import StepDone
from cohort.core.memory_records import PassKind
from cohort.ranks import group_ranks
from cohort.ranks.calls import Reply
from cohort.ranks.divided_states.divided_rows import whole_rows
from cohort.ranks.divided_states.part_shelf import KeptParts
from cohort.ranks.group_meeting import Rendezvous
from cohort.ranks.grouped_executor import GroupedExecutor
from cohort.ranks.rank_group import PipelineGroup
from cohort.ranks.step_window import StepWindow
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec
from tests.training.small_models import random_rows

LAYOUT = AdapterLayout({f"model.layers.{layer}.self_attn.q_proj": (3, 2) for layer in range(2)})
SETTINGS = ExecutorSettings(num_slots=2, num_rank_rows=32, token_budget=100, evaluation_token_budget=80)
SPEC = TrialSpec(
    trial_id=7, seed=0, adapter=AdapterSpec(r=2, lora_alpha=2.0), learning_rate=1e-3, batch_size=1, num_steps=9
)


class FakeRank:
    """A rank that answers what it is told to; None as an answer is silence, an exception its end."""

    def __init__(self, rank: int) -> None:
        self.rank, self.asked, self.ended = rank, list[Any](), ""
        self._here, self._there = socket.socketpair()
        self._replies: list[Reply | RankLostError] = []
        self.answers: Callable[[Any], Any] = lambda _: None
        self._give(Reply())

    def _give(self, reply: Reply | RankLostError) -> None:
        self._replies.append(reply)
        self._there.send(b"1")

    def ask(self, command: Any) -> None:
        self.asked.append(command)
        reply = self.answers(command)
        if reply is not None:
            self._give(reply)

    def answer(self) -> Reply:
        self._here.recv(1)
        reply = self._replies.pop(0)
        if isinstance(reply, RankLostError):
            raise reply
        return reply

    def fileno(self) -> int:
        return self._here.fileno()

    def kill(self) -> None:
        self.ended = "killed"

    def hang_up(self) -> None:
        self._here.close()
        self._there.close()

    def close(self) -> None:
        self.ended = self.ended or "closed"


@pytest.fixture
def ranks() -> Iterator[list[FakeRank]]:
    made = [FakeRank(rank) for rank in range(2)]
    yield made
    for rank in made:
        rank.hang_up()


@pytest.fixture
def executor(ranks: list[FakeRank]) -> GroupedExecutor:
    processes: Any = ranks
    return GroupedExecutor(
        processes,
        PipelineGroup(cuts=(0, 1, 2)),
        layout=LAYOUT,
        settings=SETTINGS,
        rendezvous=Rendezvous(),
    )


def answering(ranks: list[FakeRank], **replies: Any) -> None:
    """Let all ranks answer calls by their verbs; a function gets the rank."""
    for rank in ranks:

        def answer(call: Any, rank: FakeRank = rank) -> Reply | None:
            value = replies.get(call.verb)
            value = value(rank.rank) if callable(value) else value
            return value if isinstance(value, Reply) or value is None else Reply(value=value)

        rank.answers = answer


def event(step: int, *, loss: float = 1.0) -> StepDone:
    return StepDone(trial_id=7, step=step, loss=loss, grad_norm=1.0, learning_rate=1e-3, num_tokens=3)


def test_every_rank_gets_every_call_and_the_last_one_answers_for_the_model(
    executor: GroupedExecutor, ranks: list[FakeRank]
) -> None:
    window = StepWindow(rounds=((event(1),), (event(2, loss=math.nan),), (event(3),)))
    answering(
        ranks,
        load=0,
        fits=True,
        run=lambda rank: window if rank else StepWindow(rounds=()),
        evaluate=lambda rank: {7: f"loss of rank {rank}"},
        keep_state=KeptParts(num_bytes={"weights": 40}, dtypes={"weights": torch.float32}, are_on_gpu=False, step=3),
        part=lambda rank: torch.full((2, 5), float(rank)),
        drop=Reply(),
        lower_token_budgets=Reply(),
    )
    assert executor.fits(SPEC)
    assert executor.load(SPEC) == 0
    assert (executor.resident, executor.rank_of(7), executor.steps_of(7)) == ((7,), 0, 0)
    found = executor.run({7: 3})
    # steps of a trial that has ended are not reported, but its state has them
    assert found.rounds == window.rounds[:2]
    assert executor.steps_of(7) == 3
    rows = random_rows(3)
    losses: Any = executor.evaluate((7,), rows=rows, row_ids=(0,))
    assert losses == {7: "loss of rank 1"}
    assert whole_rows(executor.state(7).adapter.weights).tolist() == [[0.0] * 5 + [1.0] * 5] * 2
    executor.lower_token_budgets({PassKind.TRAIN: 50})
    assert executor.token_budgets == {PassKind.TRAIN: 50, PassKind.EVALUATE: 80}
    executor.drop(7)
    assert executor.resident == ()
    # nothing holds the state any more: the ranks forget their parts before the next call
    kept = ["keep_state", "part", "forget_parts"]
    verbs = ["fits", "load", "run", "evaluate", *kept, "lower_token_budgets", "drop"]
    assert [[call.verb for call in rank.asked] for rank in ranks] == [verbs, verbs]
    executor.close()
    assert [rank.ended for rank in ranks] == ["closed", "closed"]


def test_an_error_of_all_ranks_leaves_the_group_as_it_was(executor: GroupedExecutor, ranks: list[FakeRank]) -> None:
    answering(ranks, load=0, step=Reply(error=ValueError("a bad row")), run=Reply(error=ValueError("a bad row")))
    executor.load(SPEC)
    with pytest.raises(ValueError, match="a bad row"):
        executor.step()
    window = executor.run({7: 2})
    assert isinstance(window.error, ValueError)
    assert not any(rank.ended for rank in ranks)
    assert [call.verb for call in ranks[0].asked[-2:]] == ["step", "run"]


def test_a_rank_that_fails_alone_ends_the_group_and_shortage_lowers_the_budget(
    executor: GroupedExecutor, ranks: list[FakeRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_ranks, "_GRACE_SECONDS", 0.05)
    short = Reply(value=StepWindow(rounds=(), error=torch.OutOfMemoryError("CUDA out of memory")))
    # rank 0 waits for the other for ever
    answering(ranks, load=0, run=lambda rank: short if rank else None)
    executor.load(SPEC)
    with pytest.raises(RankLostError, match=r"rank 1 failed alone in run \(OutOfMemoryError"):
        executor.run({7: 2})
    assert [rank.ended for rank in ranks] == ["killed", "killed"]
    assert executor.token_budgets == {PassKind.TRAIN: 50, PassKind.EVALUATE: 80}
    (shortage,) = executor.take_shortages()
    assert (shortage.budget_before, shortage.budget_after) == (100, 50)
    assert not executor.take_shortages()


def test_a_lost_rank_ends_the_others_at_once(executor: GroupedExecutor, ranks: list[FakeRank]) -> None:
    answering(ranks, load=0)
    executor.load(SPEC)
    ranks[1].answers = lambda _: RankLostError("rank 1 ended by SIGKILL")
    with pytest.raises(RankLostError, match="rank 1 ended by SIGKILL"):
        executor.step()
    assert [rank.ended for rank in ranks] == ["killed", "killed"]


def test_a_trial_is_on_no_rank_of_its_own(executor: GroupedExecutor) -> None:
    with pytest.raises(ValueError, match="rank 1 of a group"):
        executor.load(SPEC, rank=1)
