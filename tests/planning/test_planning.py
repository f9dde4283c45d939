"""From task files to one plan: names, every problem at once, and the plan as plain data."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError, Problem
from cohort.planning import planning
from cohort.planning.cluster_choice import choose_cluster
from cohort.planning.estimate.estimate import estimate_task
from cohort.planning.planning import NamedTask, TaskPlan, load_tasks, plan_json, plan_tasks
from tests.cli.tiny_task import TASK
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("planned"))
    for name in ("first", "second"):
        (folder / f"{name}.yaml").write_text(TASK)
    (folder / "inner").mkdir()
    (folder / "inner" / "first.yaml").write_text(
        TASK.replace("base_model: model", "base_model: ../model").replace("train.jsonl", "../train.jsonl")
    )
    return folder


def named(folder: Path, **steps: int) -> list[NamedTask]:
    return [
        NamedTask(
            name=name, path=folder / f"{name}.yaml", file=tiny_task(folder, training={"max_steps": n}, num_gpus="auto")
        )
        for name, n in steps.items()
    ]


@pytest.fixture(scope="module")
def planned(folder: Path) -> TaskPlan:
    tasks = named(folder, short=100_000, long=200_000, third=100_000)
    return plan_tasks(tasks, choose_cluster(gpus=2, workers=None, dry_run="H200"))


def problems_of(*args: Any, **keys: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load_tasks(*args, **keys)
    return list(caught.value.problems)


def test_files_of_one_name_are_told_apart_by_their_folders(folder: Path) -> None:
    tasks = load_tasks([folder / "first.yaml", folder / "inner" / "first.yaml", folder / "second.yaml"])
    assert [task.name for task in tasks] == ["first", "inner-first", "second"]


def test_repeats_are_numbered_and_each_is_the_whole_list(folder: Path) -> None:
    tasks = load_tasks([folder / "first.yaml", folder / "second.yaml"], repeat=2)
    assert [task.name for task in tasks] == ["first-1", "second-1", "first-2", "second-2"]
    assert tasks[0].file is tasks[2].file


def test_every_problem_of_all_files_is_told_at_once(folder: Path, tmp_path: Path) -> None:
    assert [problem.found for problem in problems_of([], repeat=0)] == ["no task", "0"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(TASK.replace("num_gpus: 0", "num_gpu: 0\npriority: high"))
    found = problems_of([folder / "first.yaml", wrong, folder / "first.yaml", tmp_path / "none.yaml"])
    assert {str(problem.where).partition(":")[0] for problem in found} == {
        str(wrong), str(folder / "first.yaml"), str(tmp_path / "none.yaml")
    }  # fmt: skip
    assert "the same file twice" in [problem.found for problem in found]


def test_a_file_of_a_name_that_is_taken_twice_is_named(folder: Path, tmp_path: Path) -> None:
    for outer in ("a", "b"):
        inner = tmp_path / outer / "inner"
        inner.mkdir(parents=True)
        text = TASK.replace("base_model: model", f"base_model: {folder / 'model'}")
        (inner / "first.yaml").write_text(text.replace("train: train.jsonl", f"train: {folder / 'train.jsonl'}"))
    files = [folder / "first.yaml", *(tmp_path / outer / "inner" / "first.yaml" for outer in ("a", "b"))]
    (problem,) = problems_of(files)
    assert (str(problem.where), problem.found) == (str(files[2]), "another task named first")


def test_a_plan_is_plain_data_with_every_task(planned: TaskPlan) -> None:
    told = plan_json(planned)
    assert [task["task"] for task in told["tasks"]] == ["short", "long", "third"]
    assert told["makespan_seconds"] >= told["lower_bound_seconds"] > 0
    assert {"first come", "shortest first", "longest first"} <= set(told["baselines"])
    assert planned.placement("long").end_seconds <= told["makespan_seconds"]
    (option,) = told["tasks"][0]["options"]
    # all parts are told, whatever they are
    parts = [value for name, value in option.items() if name.endswith("_seconds")]
    assert len(parts) > 3
    assert sum(parts) == pytest.approx(option["seconds"])


def test_a_gap_that_no_solver_proved_is_no_number_in_json(planned: TaskPlan) -> None:
    listed = replace(planned, plan=replace(planned.plan, solver_gap=math.nan))
    told = plan_json(listed)
    assert told["solver"]["gap"] is None
    json.dumps(told, allow_nan=False)


def test_a_file_that_is_planned_many_times_is_estimated_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimated: list[str] = []

    def counting(task: Any, *args: Any, **keys: Any) -> Any:
        estimated.append(task.model_name_or_path)
        return estimate_task(task, *args, **keys)

    monkeypatch.setattr(planning, "estimate_task", counting)
    (task,) = named(folder, one=1000)
    twice = [replace(task, name=f"one-{n}") for n in (1, 2)]
    plan = plan_tasks(twice, choose_cluster(gpus=None, workers=None, dry_run="2xH200"))
    assert len(estimated) == 1
    assert {placement.task_id for placement in plan.plan.placements} == {"one-1", "one-2"}


def test_problems_name_their_file_where_there_are_several(folder: Path) -> None:
    choice = choose_cluster(gpus=None, workers=None, dry_run="H200")
    tasks = [replace(task, file=tiny_task(folder, num_gpus=0)) for task in named(folder, one=10, two=10)]
    for count in (1, 2):
        with pytest.raises(InputError) as caught:
            plan_tasks(tasks[:count], choice, most_gpus=0)
        wheres = [str(problem.where) for problem in caught.value.problems]
        assert wheres[0] == "--max-gpus-per-task"
        files = [str(folder / name) for name in ("one.yaml", "two.yaml")][:count]
        assert [where.startswith(file) for where, file in zip(wheres[1:], files, strict=True)] == [count > 1] * count
