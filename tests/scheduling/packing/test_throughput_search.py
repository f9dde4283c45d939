"""The search over degrees: it finishes what it can, and never promises GPUs or trials twice."""

from __future__ import annotations

from collections import Counter

import pytest

from cohort.scheduling.packing.prices import rank_weights
from cohort.scheduling.packing.records import ItemType
from cohort.scheduling.packing.throughput_search import ThroughputSearch

from .packing_instances import problem, random_trials


@pytest.mark.parametrize("num_trials", [2, 8])
def test_chosen_packs_share_neither_gpus_nor_trials(num_trials: int) -> None:
    given = problem(random_trials(5, num_trials), num_gpus=4, room=150_000)
    available = Counter(ItemType.of(trial) for trial in given.trials)
    chosen = ThroughputSearch(problem=given, weights=rank_weights(given)).choose(4, available)
    assert chosen
    assert sum(pack.num_gpus for pack in chosen) <= 4
    taken = Counter(dict.fromkeys(available, 0))
    for pack in chosen:
        taken.update(dict(pack.pack.counts))
    assert all(taken[type_] <= count for type_, count in available.items())
