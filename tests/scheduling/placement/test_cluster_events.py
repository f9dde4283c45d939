"""The state of a cluster: which GPUs are free, and when a task is expected to end."""

from __future__ import annotations

from cohort.scheduling.placement.cluster_events import ActiveTask, ClusterState
from cohort.scheduling.placement.records import Cluster

from .placement_instances import task


def test_gpus_that_no_task_holds_are_free() -> None:
    active = ActiveTask(request=task("a", 2, 9.0), gpu_ids=(1, 2), started_seconds=4.0, expected_seconds=9.0)
    state = ClusterState(cluster=Cluster.of_one_node(4), active=(active,))
    assert state.free_gpu_ids == (0, 3)
    assert active.ends_seconds == 13.0
