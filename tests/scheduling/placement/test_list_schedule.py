"""The fast schedule equals the plain one, bit by bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.scheduling.placement.list_schedule import schedule_in_order
from cohort.scheduling.placement.records import Cluster

from .placement_instances import random_instance, task
from .plain_schedule import plain_schedule


@pytest.mark.parametrize("seed", range(150))
def test_the_schedule_is_that_of_plain_loops(seed: int) -> None:
    tasks, cluster, running = random_instance(seed)
    # nodes of unequal sizes, as after a loss
    if seed % 3 == 0 and cluster.num_gpus > 2 and len(cluster.nodes) > 1:
        lost = cluster.gpu_ids[-1]
        cluster = cluster.without([lost])
        running = [held for held in running if lost not in held.gpu_ids]
        tasks = [
            replace(one, options=fitting)
            for one in tasks
            if (fitting := tuple(o for o in one.options if o.num_gpus <= cluster.most_gpus_for(one)))
        ]
    expected = plain_schedule(tasks, cluster, running=running)
    assert schedule_in_order(tasks, cluster, running=running) == expected


def test_a_gpu_takes_nothing_before_it_is_free() -> None:
    placed = schedule_in_order([task("a", 2, 10)], Cluster.of_one_node(2), free_from={1: 5.0})
    assert (placed[0].start_seconds, placed[0].gpu_ids) == (5.0, (0, 1))
