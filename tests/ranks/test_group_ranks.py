"""All ranks are asked before an answer is awaited; one that fails alone ends the others, also silent ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cohort.core.errors import RankLostError, RunStateError
from cohort.core.memory_records import PassKind
from cohort.ranks import group_ranks
from cohort.ranks.calls import Call, Reply, Standing
from cohort.ranks.group_ranks import GroupRanks
from cohort.ranks.training_executor import TrainingExecutor
from tests.ranks.test_grouped_executor import FakeRank

STEP = Call.of(TrainingExecutor.step)
Failed = list[tuple[list[BaseException], PassKind]]


@pytest.fixture
def links() -> Iterator[list[FakeRank]]:
    made = [FakeRank(rank) for rank in range(3)]
    yield made
    for rank in made:
        rank.hang_up()


def ranks_of(links: list[FakeRank], failed: Failed) -> GroupRanks:
    processes: Any = links
    ranks = GroupRanks(processes, failed=lambda errors, kind: failed.append((list(errors), kind)))
    ranks.wait_until_ready()
    return ranks


def test_a_rank_that_cannot_begin_ends_the_others_and_says_why(
    links: list[FakeRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others fail because of it, or wait for it: none of them knows the reason."""
    monkeypatch.setattr(group_ranks, "_GRACE_SECONDS", 0.01)
    # what they answered when they were made
    for link in links:
        link.answer()
    links[0]._give(Reply(error=RuntimeError("connection reset")))
    links[2]._give(Reply(error=RunStateError("rank 2 (host 1) finds no base model")))
    with pytest.raises(RunStateError, match="finds no base model"):
        ranks_of(links, [])
    assert {link.ended for link in links} == {"killed"}


def test_values_come_in_the_order_of_the_ranks(links: list[FakeRank]) -> None:
    ranks = ranks_of(links, [])
    for link in links:
        link.answers = lambda _, link=link: Reply(  # type: ignore[misc]
            value=10 * link.rank, standing=Standing(num_recomputed=link.rank), seconds=link.rank + 1.0
        )
    assert ranks.ask(Call.of(TrainingExecutor.make_room)) == [0, 10, 20]
    assert ranks.num_recomputed == 2
    ranks.ask(STEP, PassKind.TRAIN)
    # what keeps a rank's room is no work
    assert [work.train_seconds for work in ranks.work] == [1.0, 2.0, 3.0]


def test_an_error_that_some_raise_while_others_are_silent_ends_all(
    links: list[FakeRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_ranks, "_GRACE_SECONDS", 0.01)
    failed: Failed = []
    ranks, error = ranks_of(links, failed), ValueError("a bad\nrow")
    links[1].answers = lambda _: Reply(error=error)
    with pytest.raises(RankLostError, match=r"rank 1 failed alone in step \(ValueError: a bad row\); everything"):
        ranks.ask(STEP, PassKind.TRAIN)
    assert failed == [([error], PassKind.TRAIN)]
    assert {link.ended for link in links} == {"killed"}


def test_an_error_of_all_is_raised_and_ends_none(links: list[FakeRank]) -> None:
    failed: Failed = []
    ranks = ranks_of(links, failed)
    for link in links:
        link.answers = lambda _: Reply(error=KeyError("no such trial"))
    with pytest.raises(KeyError, match="no such trial"):
        ranks.ask(STEP, PassKind.TRAIN)
    assert not failed
    assert not any(link.ended for link in links)
