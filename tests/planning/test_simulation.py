"""A plan in simulated time: exits shorten training, not the start; the planner is compared with first come."""

from __future__ import annotations

import pytest

from cohort.planning.cluster_choice import choose_cluster
from cohort.planning.planning import NamedTask, TaskPlan, plan_tasks
from cohort.planning.simulation import simulate_plan, simulation_json
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> TaskPlan:
    folder = write_inputs(tmp_path_factory.mktemp("simulation"))
    tasks = [
        NamedTask(
            name=name, path=folder / f"{name}.yaml", file=tiny_task(folder, training={"max_steps": n}, num_gpus="auto")
        )
        for name, n in (("short", 100_000), ("long", 200_000), ("third", 100_000))
    ]
    return plan_tasks(tasks, choose_cluster(gpus=2, workers=None, dry_run="H200"))


def test_without_exits_the_plan_comes_true(planned: TaskPlan) -> None:
    simulation = simulate_plan(planned, exit_shares={task.name: (1.0,) for task in planned.tasks})
    assert simulation.mean_share == 1.0
    assert simulation.planned.makespan_seconds == pytest.approx(planned.plan.makespan_seconds, rel=0.01)
    assert simulation.planned.makespan_seconds <= simulation.first_come.makespan_seconds * 1.001
    told = simulation_json(simulation)
    assert {segment["task"] for segment in told["segments"]} == {"short", "long", "third"}
    assert told["unfinished"] == []


def test_exits_shorten_a_task_by_less_than_its_steps(planned: TaskPlan) -> None:
    whole, half = (
        simulate_plan(planned, exit_shares={task.name: (share,) for task in planned.tasks}) for share in (1.0, 0.5)
    )
    ratio = half.planned.makespan_seconds / whole.planned.makespan_seconds
    assert 0.5 < ratio < 1.0
    assert half.mean_share == 0.5


def test_the_same_seed_is_the_same_world(planned: TaskPlan) -> None:
    shares = {task.name: (0.2, 0.6, 1.0) for task in planned.tasks}
    one, two = (simulate_plan(planned, exit_shares=shares, failures_per_gpu_hour=1.0, seed=3) for _ in range(2))
    assert simulation_json(one) == simulation_json(two)
