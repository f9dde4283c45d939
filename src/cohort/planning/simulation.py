"""Simulates a plan whose trials exit early: placed by the planner, and in the order the tasks were given."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.planning.cluster_simulation import simulate
from cohort.planning.estimate.estimate import TaskEstimate
from cohort.planning.planning import TaskPlan, where_and_when
from cohort.planning.simulation_records import SimulatedTask, SimulationReport, SimulationSettings
from cohort.scheduling.placement.task_order import ListPolicy

__all__ = ["PlanSimulation", "simulate_plan", "simulation_json"]


@dataclass(frozen=True, kw_only=True)
class PlanSimulation:
    """One simulation under two policies.

    Attributes:
        planned: Placed by the planner, which plans again at every event.
        first_come: In the order they were given.
        mean_share: Mean share of its planned steps that a trial does.
    """

    planned: SimulationReport
    first_come: SimulationReport
    mean_share: float


def simulate_plan(
    planned: TaskPlan,
    *,
    exit_shares: Mapping[str, Sequence[float]],
    failures_per_gpu_hour: float = 0.0,
    seed: int = 0,
) -> PlanSimulation:
    """Run the plan's tasks on its devices in simulated time; deterministic.

    Args:
        exit_shares: By task, shares of the planned steps that its trials' own are drawn from.
        failures_per_gpu_hour: Expected deaths of workers.
    """
    tasks = [
        SimulatedTask(
            request=request,
            num_trials=planned.estimates[request.task_id].num_trials,
            exit_shares=_shares_of_time(planned.estimates[request.task_id], exit_shares[request.task_id]),
        )
        for request in planned.requests
    ]

    def run(policy: ListPolicy | None) -> SimulationReport:
        # one seed: both orders meet trials that exit at the same shares
        settings = SimulationSettings(failures_per_gpu_hour=failures_per_gpu_hour, seed=seed, policy=policy)
        return simulate(tasks, planned.choice.cluster, settings=settings)

    return PlanSimulation(
        planned=run(None),
        first_come=run(ListPolicy.FIRST_COME),
        # a task's shares count once for each of its trials
        mean_share=statistics.fmean(
            (statistics.fmean(exit_shares[task.request.task_id]) for task in tasks),
            weights=[task.num_trials for task in tasks],
        ),
    )


def _shares_of_time(estimate: TaskEstimate, shares: Sequence[float]) -> tuple[float, ...]:
    # the start of the process and the writing of results take as long
    time = estimate.options[0].time
    saved = time.shortened / time.total
    return tuple(1 - saved * (1 - share) for share in shares)


def simulation_json(simulation: PlanSimulation) -> dict[str, Any]:
    report = simulation.planned
    return {
        "mean_exit_share": simulation.mean_share,
        "makespan_seconds": report.makespan_seconds,
        "planned_makespan_seconds": report.planned_makespan_seconds,
        "utilisation": report.utilisation,
        "replans": report.num_replans,
        "failures": report.num_failures,
        "evictions": report.num_evictions,
        "joined": report.num_joined,
        "unfinished": list(report.unfinished),
        "first_come_makespan_seconds": simulation.first_come.makespan_seconds,
        "segments": [{"task": segment.task_id, **where_and_when(segment)} for segment in report.segments],
    }
