"""The devices of a plan: those of this machine, or hardware that is only named."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.planning.cluster_choice import choose_cluster


@pytest.mark.parametrize(
    ("dry_run", "gpus", "label", "nodes"),
    [
        ("8xH200", None, "8 x H200", {"local": tuple(range(8))}),
        ("H200", 2, "2 x H200", {"local": (0, 1)}),
        ("2x4xH200", None, "2 x 4 x H200", {"node0": (0, 1, 2, 3), "node1": (4, 5, 6, 7)}),
        ("2x4xH200", 8, "2 x 4 x H200", {"node0": (0, 1, 2, 3), "node1": (4, 5, 6, 7)}),
    ],
)
def test_hardware_that_is_named(dry_run: str, gpus: int | None, label: str, nodes: dict[str, tuple[int, ...]]) -> None:
    choice = choose_cluster(gpus=gpus, workers=None, dry_run=dry_run)
    assert (choice.label, choice.is_dry_run) == (label, True)
    assert dict(choice.cluster.nodes) == nodes


def test_workers_of_this_machine() -> None:
    choice = choose_cluster(gpus=None, workers=3, dry_run=None)
    assert not choice.is_dry_run
    assert choice.label.startswith("3 x CPU worker (")
    assert choice.cluster.num_gpus == 3


@pytest.mark.parametrize(
    ("gpus", "workers", "dry_run", "found"),
    [
        (None, 2, "8xH200", "--workers 2 with --dry-run 8xH200"),
        (4, None, "8xH200", "--gpus 4 with --dry-run 8xH200"),
        (0, None, "H200", "0"),
    ],
)
def test_contradictions_are_refused(gpus: int | None, workers: int | None, dry_run: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_cluster(gpus=gpus, workers=workers, dry_run=dry_run)
    assert [problem.found for problem in caught.value.problems] == [found]


def test_gpus_that_are_not_here_point_to_a_dry_run() -> None:
    with pytest.raises(InputError, match="write --dry-run 8xH200"):
        choose_cluster(gpus=64, workers=None, dry_run=None)
