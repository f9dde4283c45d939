"""Groups of ranks: sums and gathered parts, counted; a rank that fails ends the others."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from cohort.ranks.tensor.groups import OneRank
from tests.ranks.tensor.thread_group import ThreadGroup, run_threads


def test_threads_exchange_what_each_of_them_has() -> None:
    def work(group: ThreadGroup) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], Counter[str]]:
        own = torch.full((2,), float(group.rank + 1))
        return group.all_reduce(own), group.all_gather(own), group.counts

    for summed, gathered, counts in run_threads(3, work):
        assert summed.tolist() == [6.0, 6.0]
        assert [part[0].item() for part in gathered] == [1.0, 2.0, 3.0]
        assert counts == Counter(all_reduce=1, all_gather=1)


def test_one_rank_exchanges_nothing() -> None:
    own = torch.ones(2)
    for group in (OneRank(), ThreadGroup.of(1)[0]):
        assert group.all_reduce(own) is own
        assert group.all_gather(own)[0] is own
        assert not group.counts


def test_a_rank_that_fails_ends_the_others() -> None:
    def work(group: ThreadGroup) -> None:
        if group.rank == 1:
            raise ValueError("no such tensor")
        group.all_reduce(torch.ones(1))

    with pytest.raises(ValueError, match="no such tensor"):
        run_threads(3, work)
