"""A rank is asked in order, gets rows once, and is lost with an error that says so."""

from __future__ import annotations

from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.core.errors import RankLostError
from cohort.ranks.calls import Call, Reply
from cohort.ranks.rank_link import RankLink
from cohort.ranks.training_executor import TrainingExecutor
from cohort.ranks.transport import Channel
from tests.training.small_models import random_rows


class Linked(RankLink):
    """A rank at the other end of a pipe."""

    @property
    def process_id(self) -> int:
        return 7

    def close(self) -> None: ...

    def kill(self) -> None: ...

    def _lost(self) -> RankLostError:
        return RankLostError(f"rank {self.rank} is gone")


@pytest.fixture
def ends() -> tuple[Linked, Channel]:
    here, there = Pipe()
    return Linked(3, Channel(here)), Channel(there)


def asked_with(rows: Any, link: Linked, rank: Channel) -> Any:
    link.ask(Call.of(TrainingExecutor.evaluate_base, rows=rows, row_ids=(0,)))
    return rank.receive()


def test_calls_are_answered_in_order_and_a_closed_end_is_a_lost_rank(ends: tuple[Linked, Channel]) -> None:
    link, rank = ends
    for trial_id in (1, 2):
        link.ask(Call.of(TrainingExecutor.drop, trial_id))
    assert [rank.receive().call.arguments for _ in range(2)] == [{"trial_id": 1}, {"trial_id": 2}]
    rank.send(Reply(value="one"))
    assert link.answer().value == "one"
    rank.close()
    with pytest.raises(RankLostError, match="rank 3 is gone"):
        link.answer()
    with pytest.raises(RankLostError, match="rank 3 is gone"):
        link.ask(Call.of(TrainingExecutor.make_room))


def test_rows_travel_once_known_by_identity_and_begin_anew_with_a_setup(ends: tuple[Linked, Channel]) -> None:
    link, rank = ends
    first, second, equal = random_rows(2), random_rows(3), random_rows(3)
    setup: Any = SimpleNamespace(rank=3, rows=(first,))
    for _ in range(2):
        link.begin(setup)
        rank.receive()
        sent = [asked_with(rows, link, rank) for rows in (first, second, equal, second)]
        assert [each.rows for each in sent] == [{"rows": number} for number in (0, 1, 2, 1)]
        assert [list(each.new_rows) for each in sent] == [[], [1], [2], []]
        assert not any("rows" in each.call.arguments for each in sent)


@pytest.mark.parametrize("on_device", [False, True])
def test_a_copy_stays_on_the_device_until_it_was_opened(ends: tuple[Linked, Channel], on_device: bool) -> None:
    link, rank = ends
    link.ask(Call.of(TrainingExecutor.weights, 4, on_device=on_device))
    assert rank.receive().call.arguments == {"trial_id": 4, "on_device": True}
    rank.send(Reply(value=torch.ones(2)))
    assert link.answer().value.device == torch.device("cpu")
    # the next answer is not taken for a copy
    link.ask(Call.of(TrainingExecutor.make_room))
    rank.send(Reply(value=True))
    assert link.answer().value is True
