"""Tasks that train on a base that stays in memory: each ends as it would alone, whatever else uses the base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cohort.engine.tune import tune
from cohort.runs.directory import RunDirectory
from cohort.tasks.loading import TaskFile
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_task, write_inputs
from tests.engine.resident.resident_scene import Ends, base_of, order_of, sweeping

# other rows, ranks, steps and seeds for each tenant
TENANTS: dict[str, dict[str, Any]] = {
    "ants": {},
    "bees": {
        "training": {"max_steps": 5, "seed": 7, "batch_size": 3},
        "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [3, 8]}},
    },
    "cats": {"dataset": {"train": "other.jsonl"}, "training": {"max_steps": 6, "seed": 3}},
    "dogs": {"objective": {"type": "sft"}, "search": {"space": {"learning_rate": [3e-3], "r": [2, 5, 16]}}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("tiny"))
    rows = [{"prompt": f"{n}*2=", "completion": str(2 * n)} for n in range(20)]
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def task_of(folder: Path, tenant: str) -> TaskFile:
    return tiny_task(folder, **TENANTS[tenant])


def in_any_order(run: Path) -> Outcome:
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Outcome]:
    found = {}
    for tenant in TENANTS:
        tune(task_of(folder, tenant), folder / "alone" / tenant)
        found[tenant] = in_any_order(folder / "alone" / tenant)
    return found


def test_tasks_of_four_tenants_on_one_base_end_as_each_would_alone(
    folder: Path, tmp_path: Path, alone: dict[str, Outcome]
) -> None:
    ends, base = Ends(), base_of(folder / "model")
    with sweeping(base) as sweeps:
        for weight, tenant in enumerate(TENANTS, start=1):
            order = order_of(tenant, task_of(folder, tenant), tmp_path / tenant, ends, tenant=tenant, weight=weight)
            sweeps.submit(order)
        ends.wait(*TENANTS)
    assert all(end.error is None and not end.has_left for end in ends.found.values()), ends.found
    assert {tenant: in_any_order(tmp_path / tenant) for tenant in TENANTS} == alone


def test_tasks_wait_for_seats_and_give_them_to_tenants_that_have_none(
    folder: Path, tmp_path: Path, alone: dict[str, Outcome]
) -> None:
    ends, base = Ends(), base_of(folder / "model")
    with sweeping(base, num_seats=2) as sweeps:
        for number in range(3):
            sweeps.submit(order_of(f"ants-{number}", task_of(folder, "ants"), tmp_path / f"ants-{number}", ends))
        sweeps.submit(order_of("bees", task_of(folder, "bees"), tmp_path / "bees", ends, tenant="bees"))
        ends.wait("bees", *(f"ants-{number}" for number in range(3)))
    assert list(ends.found)[-1].startswith("ants")
    assert in_any_order(tmp_path / "bees") == alone["bees"]
    for number in range(3):
        assert in_any_order(tmp_path / f"ants-{number}") == alone["ants"]


def test_a_task_of_other_linears_waits_for_an_empty_bank_and_a_wrong_one_is_told(
    folder: Path, tmp_path: Path, alone: dict[str, Outcome]
) -> None:
    ends, base = Ends(), base_of(folder / "model")
    other = tiny_task(folder, lora={"target_modules": ["q_proj"]}, training={"max_steps": 2})
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "somebody's.txt").touch()
    with sweeping(base) as sweeps:
        sweeps.submit(order_of("ants", task_of(folder, "ants"), tmp_path / "ants", ends))
        sweeps.submit(order_of("other", other, tmp_path / "other", ends))
        sweeps.submit(order_of("taken", other, tmp_path / "taken", ends))
        ends.wait("ants", "other", "taken")
    assert list(ends.found).index("ants") < list(ends.found).index("other")
    assert ends.found["ants"].error is None
    assert ends.found["other"].error is None, ends.found["other"]
    assert "found no run.db in it" in str(ends.found["taken"].error)
    assert in_any_order(tmp_path / "ants") == alone["ants"]


def test_sweeps_that_close_leave_runs_that_go_on(folder: Path, tmp_path: Path, alone: dict[str, Outcome]) -> None:
    ends = Ends()
    with sweeping(base_of(folder / "model")) as sweeps:
        sweeps.submit(order_of("ants", task_of(folder, "ants"), tmp_path / "ants", ends))
        while RunDirectory.find_problem(tmp_path / "ants") is None:
            pass
    assert ends.found["ants"].has_left
    again = Ends()
    with sweeping(base_of(folder / "model")) as sweeps:
        sweeps.submit(order_of("ants", task_of(folder, "ants"), tmp_path / "ants", again))
        again.wait("ants")
    assert in_any_order(tmp_path / "ants") == alone["ants"]


def test_a_row_that_the_plan_has_no_room_for_is_refused(folder: Path, tmp_path: Path) -> None:
    ends, base = Ends(), base_of(folder / "model", tokens_per_step=4)
    with sweeping(base) as sweeps:
        sweeps.submit(order_of("ants", task_of(folder, "ants"), tmp_path / "ants", ends))
        ends.wait("ants")
    assert "at most 4, for which the base model's passes have room" in str(ends.found["ants"].error)
    assert not (tmp_path / "ants").exists()
