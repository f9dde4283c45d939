"""A Ray cluster of this machine whose nodes can be lost, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import REPOSITORY

__all__ = ["RayNodes", "nodes"]


class RayNodes:
    """A head without CPUs and two nodes with one each."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

    def add(self, *, num_cpus: int = 1) -> None:
        self._cluster.add_node(num_cpus=num_cpus)

    def lose(self, index: int) -> None:
        self._cluster.remove_node(self._nodes[index])


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayNodes]:
    """A cluster that this process is connected to; skips without Ray."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY / 'src'}:{REPOSITORY}:{inherited}")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    found = RayNodes(cluster)
    ray.init(address=cluster.address, log_to_driver=False)
    yield found
    ray.shutdown()
    cluster.shutdown()
