"""A queue on two CPU workers whose tasks take one or both: ``num_gpus`` counts processes there, as it counts GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cohort.engine.tune import RunOptions, tune
from cohort.machine.cluster.local import LocalPool, cpu_slots
from cohort.machine.cluster.worker_pool import PoolEvent, WorkerMessage
from cohort.machine.local_slots import hardware_of_slots
from cohort.runs.directory import QUEUE_DATABASE
from cohort.runs.reader import RunReader
from cohort.task_queue.expected_time import ExpectedTime
from cohort.task_queue.operations import add_to_queue, work_off
from cohort.task_queue.records import TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from cohort.task_queue.workers.pool import WORKER_TARGET
from tests.end_to_end.tiny_tasks import Outcome, outcome_of, tiny_data, tiny_task, write_inputs

TWO_TRIALS = {"search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [2]}}}
SHORT: dict[str, Any] = {"evaluation": {"finalists": 0, "max_examples": 2}, "training": {"max_steps": 4}, **TWO_TRIALS}
GRID: dict[str, Any] = {**SHORT, "early_exit": "none", "packing": "planned"}
TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "narrow": (1, SHORT),
    "wide": (2, GRID),
    # arrives while the others are trained
    "late": (1, {**SHORT, "training": {"max_steps": 5}}),
}


def result_of(run: Path) -> Outcome:
    outcome = outcome_of(run)
    return {**outcome, "decisions": sorted(outcome["decisions"])}


class ArrivingPool(LocalPool):
    """Two workers; a task arrives when one of them has told of a task."""

    def __init__(self, runs: Path, late: Path) -> None:
        super().__init__(cpu_slots(2, num_threads=1), target=WORKER_TARGET, log_directory=runs / "workers")
        self._runs, self._late = runs, late
        self.has_arrived = False

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        events = super().wait(timeout_seconds)
        told = [event.message.get("task") for event in events if isinstance(event, WorkerMessage)]
        if not self.has_arrived and any(told):
            self.has_arrived = True
            add_to_queue([self._late], self._runs)
        return events


def test_tasks_of_one_and_of_two_workers_are_placed_and_placed_again(tmp_path: Path) -> None:
    folder, runs = write_inputs(tmp_path / "in"), tmp_path / "runs"
    expected = {}
    for name, (num_workers, sections) in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps(tiny_data(**{**sections, "num_gpus": num_workers})))
        tune(tiny_task(folder, **sections), folder / "alone" / name, options=RunOptions())
        expected[name] = result_of(folder / "alone" / name)
    slots = cpu_slots(2, num_threads=1)
    expect = ExpectedTime(runs, hardware_of_slots(slots), slots_of_node=2)
    add_to_queue([folder / f"{name}.yaml" for name in TASKS if name != "late"], runs, expect=expect)
    pool = ArrivingPool(runs, folder / "late.yaml")
    tasks = work_off(runs, pool, expect=expect, settings=DispatcherSettings(look_seconds=0.05))
    assert {task.name: task.state for task in tasks} == dict.fromkeys(TASKS, TaskState.DONE), tasks
    assert pool.has_arrived
    with QueueStore.open(runs / QUEUE_DATABASE) as store:
        stretches, decisions = store.stretches(), store.decisions()
    held = {name: {stretch.slot_id for stretch in stretches if stretch.task == name} for name in TASKS}
    assert {name: len(slot_ids) for name, slot_ids in held.items()} == {name: n for name, (n, _) in TASKS.items()}
    plans = [decision for decision in decisions if decision.kind == "plan"]
    # the task that arrived is in a later plan, and not in the first
    names = [{entry["task"] for entry in plan.numbers["placements"]} for plan in plans]
    assert "late" not in names[0]
    assert any("late" in found for found in names[1:])
    for name, (num_workers, _) in TASKS.items():
        assert result_of(runs / name) == expected[name], name
        with RunReader.open(runs / name / "run.db") as reader:
            facts = reader.facts()
        assert facts.sizes.num_ranks == num_workers
        # within a task of two workers PLoRA's planner divides its trials over both
        packs = (facts.packing_chosen or ())[0].packs if num_workers == 2 else ()
        assert {pack.rank for pack in packs} == set(range(num_workers)) if num_workers == 2 else not packs
