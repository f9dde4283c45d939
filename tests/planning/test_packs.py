"""Packs of one task's trials over the GPUs of a machine."""

from __future__ import annotations

import pytest

from cohort.planning.cluster_choice import choose_cluster
from cohort.planning.packs import packs_json, plan_task_packs
from cohort.planning.planning import NamedTask, TaskPlan, plan_tasks
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> TaskPlan:
    folder = write_inputs(tmp_path_factory.mktemp("packs"))
    file = tiny_task(folder, num_gpus="auto")
    # --repeat plans one file twice
    tasks = [NamedTask(name=f"task-{n}", path=folder / "task.yaml", file=file) for n in (1, 2)]
    return plan_tasks(tasks, choose_cluster(gpus=2, workers=None, dry_run="H200"))


@pytest.mark.parametrize("most_gpus", [1, 2])
def test_every_trial_is_in_one_pack_and_no_bound_is_beaten(planned: TaskPlan, most_gpus: int) -> None:
    (packs,) = plan_task_packs(planned, most_gpus=most_gpus)
    assert sorted(trial for job in packs.plan.jobs for trial in job.trial_ids) == list(range(6))
    assert all(len(job.gpu_ids) <= most_gpus for job in packs.plan.jobs)
    assert packs.plan.makespan_seconds >= packs.bound_seconds * (1 - 1e-9)
    assert packs.alone_seconds > 0
    assert {rank for rank, _ in packs.parameters.values()} == {2, 4}


def test_packs_are_plain_data(planned: TaskPlan) -> None:
    (told,) = packs_json(plan_task_packs(planned))
    # the first task of a file stands for all of them
    assert told["task"] == "task-1"
    assert all(pack["start_seconds"] < pack["end_seconds"] for pack in told["packs"])
