"""What a simulation is given is checked, and its report adds up."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.planning.simulation_records import SimulatedTask, SimulationReport, SimulationSettings
from tests.scheduling.placement.placement_instances import task


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"exit_shares": ()}, "exit_shares"),
        ({"exit_shares": (0.0,)}, "exit_shares"),
        ({"exit_shares": (0.5, 1.1)}, "exit_shares"),
        ({"reestimate_share": 1.0}, "reestimate_share"),
        ({"checkpoint_seconds": 0}, "checkpoint_seconds"),
        ({"failures_per_gpu_hour": -1.0}, "failures_per_gpu_hour"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SimulationSettings(**settings)


def test_a_task_s_own_shares_are_checked_too() -> None:
    assert SimulatedTask(request=task("a", 1, 1), exit_shares=(0.5,)).exit_shares == (0.5,)
    with pytest.raises(ValueError, match="exit_shares"):
        SimulatedTask(request=task("a", 1, 1), exit_shares=(2.0,))


@pytest.mark.parametrize(("available", "expected"), [(40.0, 0.75), (0.0, 0.0)])
def test_utilisation_is_a_share_of_the_gpus_that_were_there(available: float, expected: float) -> None:
    report = SimulationReport(
        segments=(),
        planned_makespan_seconds=0.0,
        makespan_seconds=0.0,
        gpu_seconds_held=30.0,
        gpu_seconds_available=available,
        num_replans=0,
        statuses=(),
        num_failures=0,
        num_evictions=0,
        unfinished=(),
    )
    assert report.utilisation == expected
