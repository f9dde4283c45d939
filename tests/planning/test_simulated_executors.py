"""What simulated executors hold, and until when."""

from __future__ import annotations

import pytest

from cohort.planning.simulated_executors import SimulatedExecutors
from tests.scheduling.placement.placement_instances import small_work


def test_a_task_that_joins_moves_all_ends() -> None:
    executors = SimulatedExecutors()
    # half as fast as predicted
    executors.start("a", small_work(seconds=10.0), gpu_ids=(0,), now=100.0, seconds=20.0)
    assert executors.room_at((0,)) == 100.0
    ((name, left),) = executors.left((0,), now=110.0)
    assert (name, left.works[0].num_steps) == ("a", 50)
    ends = executors.join("b", small_work(seconds=10.0), hosts={"a"}, gpu_ids=(0,), now=110.0)
    assert ends == {"a": pytest.approx(120.0), "b": pytest.approx(130.0)}
    # after a has ended, b is alone
    assert [name for name, _ in executors.left((0,), now=125.0)] == ["b"]
    executors.clear((0,))
    assert executors.room_at((0,)) is None
    assert executors.left((0,), now=125.0) == ()
