"""A rank whose process is gone is an error that says so, whether it is asked or answers."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import Any

import pytest

from cohort.core.errors import RankLostError
from cohort.ranks.rank_link import RankLink
from cohort.ranks.transport import Channel


class Linked(RankLink):
    """A rank at the other end of a pipe."""

    @property
    def process_id(self) -> int:
        return 7

    def close(self) -> None: ...

    def kill(self) -> None: ...

    def _lost(self) -> RankLostError:
        return RankLostError(f"rank {self.rank} is gone")


def test_commands_are_answered_in_order_and_a_closed_end_is_a_lost_rank() -> None:
    here, there = Pipe()
    link, rank = Linked(3, Channel(here)), Channel(there)
    command: Any = {"step": 1}
    link.ask(command)
    link.ask({"step": 2})
    assert [rank.receive(), rank.receive()] == [{"step": 1}, {"step": 2}]
    rank.send("one")
    answer: Any = link.answer()
    assert answer == "one"
    there.close()
    with pytest.raises(RankLostError, match="rank 3 is gone"):
        link.answer()
    with pytest.raises(RankLostError, match="rank 3 is gone"):
        link.do(command)
