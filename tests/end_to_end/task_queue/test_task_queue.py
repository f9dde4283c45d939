"""Real tasks on real workers: whatever happens to workers and head, each ends as it would have alone, bit for bit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.core.errors import CohortError
from cohort.engine.tune import RunOptions, tune
from cohort.machine.cluster.local import LocalPool, cpu_slots
from cohort.machine.cluster.ray import RayPool
from cohort.machine.cluster.worker_pool import PoolEvent, WorkerMessage
from cohort.runs.directory import QUEUE_DATABASE
from cohort.runs.reader import RunReader
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.operations import add_to_queue, work_off
from cohort.task_queue.records import QueuedTask, RunStretch, TaskState
from cohort.task_queue.settings import DispatcherSettings, Limits
from cohort.task_queue.store import QueueStore
from cohort.task_queue.workers.pool import WORKER_TARGET
from tests.cli.tiny_task import write_rows
from tests.conftest import REPOSITORY
from tests.end_to_end.tiny_tasks import outcome_of, tiny_data, tiny_task, write_inputs
from tests.machine.cluster.ray_nodes import RayNodes, nodes
from tests.support.process_states import wait_until_gone

__all__ = ["nodes"]

# every step makes a checkpoint
OFTEN = RunOptions(checkpoint_seconds=0.0, checkpoint_share=1e9)
SPACE = {"learning_rate": [1e-3, 3e-2]}
TASKS: dict[str, dict[str, Any]] = {
    # long enough to say when it will end, on a fast machine as well
    "low": {"training": {"max_steps": 160}, "search": {"space": {**SPACE, "r": [2, 4]}}},
    "other_rows": {
        "training": {"max_steps": 16},
        "dataset": {"train": "more.jsonl"},
        "search": {"space": {**SPACE, "r": [8]}},
    },
    "middle": {"training": {"max_steps": 12, "seed": 3}, "search": {"space": {**SPACE, "r": [3]}}, "priority": 1},
    "long": {"training": {"max_steps": 160, "batch_size": 1}, "search": {"space": {**SPACE, "r": [4]}}},
    "urgent": {"training": {"max_steps": 6}, "search": {"space": {**SPACE, "r": [2]}}, "priority": 5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, task files, and what each task comes to alone."""
    folder = write_inputs(tmp_path_factory.mktemp("queue") / "in")
    write_rows(folder / "more.jsonl", count=40)
    torch.set_num_threads(1)
    for name, sections in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps(tiny_data(**sections)))
        tune(tiny_task(folder, **sections), folder / "alone" / name)
    return folder


def wait_for(condition: Callable[[], bool], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def has_steps(run: Path, *, at_least: int = 2) -> bool:
    try:
        with RunReader.open(run / "run.db") as reader:
            return len(reader.log.steps()) >= at_least
    except CohortError:
        return False


def assert_as_alone(folder: Path, runs: Path) -> None:
    for name in TASKS:
        found, expected = outcome_of(runs / name), outcome_of(folder / "alone" / name)
        for part, value in expected.items():
            assert found[part] == value, (name, part)


def workers_of(head: int) -> list[int]:
    listed = subprocess.run(["ps", "--ppid", str(head), "-o", "pid="], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def in_order(task: QueuedTask) -> tuple[TaskOption, ...]:
    return (TaskOption(num_gpus=1, seconds=float(task.task["training"]["max_steps"])),)


def on_two(task: QueuedTask) -> tuple[TaskOption, ...]:
    del task
    return (TaskOption(num_gpus=2, seconds=60.0),)


def assert_low_as_alone(folder: Path, runs: Path) -> None:
    found, expected = outcome_of(runs / "low"), outcome_of(folder / "alone" / "low")
    # two executors have room for more trials at the same time, so decisions come in another order
    for outcome in (found, expected):
        outcome["decisions"] = sorted(outcome["decisions"])
    assert found == expected


def what_happened(runs: Path) -> tuple[str, tuple[RunStretch, ...]]:
    with QueueStore.open(runs / QUEUE_DATABASE) as store:
        return " ".join(decision.text for decision in store.decisions()), store.stretches()


def first_plan_with(runs: Path, task: str) -> dict[str, float]:
    """Return when the first plan that knew ``task`` had tasks begin."""
    with QueueStore.open(runs / QUEUE_DATABASE) as store:
        plans = [decision.numbers["placements"] for decision in store.decisions() if decision.kind == "plan"]
    starts = ({entry["task"]: entry["start_seconds"] for entry in placements} for placements in plans)
    return next(found for found in starts if task in found)


class DisturbedPool(LocalPool):
    """Two workers; does something to one after the other, each time while a task trains."""

    def __init__(self, runs: Path, disturbances: list[Callable[[int], None]]) -> None:
        slots = cpu_slots(2, num_threads=1)
        super().__init__(slots, target=WORKER_TARGET, log_directory=runs / "workers")
        self.disturbances = disturbances
        self._disturbed: set[int] = set()

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        events = super().wait(timeout_seconds)
        for event in events:
            if not isinstance(event, WorkerMessage) or event.slot_id in self._disturbed or not self.disturbances:
                continue
            process_id = self.process_id(event.slot_id)
            if event.message.get("steps_done", 0) > 0 and process_id is not None:
                self._disturbed.add(event.slot_id)
                self.disturbances.pop(0)(process_id)
        return events


def test_a_killed_head_a_killed_worker_and_an_urgent_task(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    files = [str(folder / f"{name}.yaml") for name in TASKS if name != "urgent"]
    command = [sys.executable, "-m", "cohort", "run", *files, "--workers", "1", "-o", str(runs)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"}
    head = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for(lambda: any(has_steps(runs / name) for name in TASKS))
    workers = workers_of(head.pid)
    assert len(workers) == 1
    head.kill()
    head.wait()
    for worker in workers:
        wait_until_gone(worker)

    # another head goes on; a task arrives that is more urgent than all, and a worker is killed
    def hurry(process_id: int) -> None:
        add_to_queue([folder / "urgent.yaml"], runs)

    pool = DisturbedPool(runs, [hurry, lambda process_id: os.kill(process_id, signal.SIGKILL)])
    tasks = work_off(runs, pool, expect=in_order, settings=DispatcherSettings(options=OFTEN, look_seconds=0.05))
    assert {task.name: task.state for task in tasks} == dict.fromkeys(TASKS, TaskState.DONE), tasks
    assert pool.disturbances == []
    said, stretches = what_happened(runs)
    assert "died: killed by SIGKILL" in said
    # runs said when they would end, and what waits was planned anew
    assert "left" in said
    assert len({stretch.slot_id for stretch in stretches}) == 2
    # however late it came, and whether somebody had to give way: of those that then waited none was to begin before it
    starts = first_plan_with(runs, "urgent")
    assert starts["urgent"] == min(starts.values()), starts
    assert_as_alone(folder, runs)


def test_a_gang_loses_a_process_goes_on_and_ends_as_its_task_alone(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    add_to_queue([folder / "low.yaml"], runs)
    lost: list[int] = []

    def kill_the_other_rank(process_id: int) -> None:
        lost.extend(workers_of(process_id))
        os.kill(lost[0], signal.SIGKILL)

    pool = DisturbedPool(runs, [kill_the_other_rank])
    tasks = work_off(runs, pool, expect=on_two, settings=DispatcherSettings(options=OFTEN))
    assert {task.state for task in tasks} == {TaskState.DONE}, tasks
    assert len(lost) == 1
    said, stretches = what_happened(runs)
    # its worker lives and says it, so that one process which dies is one failure of the task
    assert re.search(r"rank 1 \(process \d+\) ended by SIGKILL.*; it will continue from its last checkpoint", said)
    assert "the worker on" not in said
    assert [stretch.slot_id for stretch in stretches] == [0, 1, 0, 1]
    assert_low_as_alone(folder, runs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_gang_of_a_ray_node_ends_as_its_task_alone(folder: Path, tmp_path: Path, nodes: RayNodes) -> None:
    """A gang stays on one machine: of four slots it takes the two that are on one node."""
    nodes.add(num_cpus=2)
    runs = tmp_path / "runs"
    add_to_queue([folder / "low.yaml"], runs)
    pool = RayPool(target=WORKER_TARGET, log_directory=tmp_path / "workers", on_gpu=False)
    together = {slot.slot_id for slot in pool.slots() if [each.node for each in pool.slots()].count(slot.node) == 2}
    tasks = work_off(runs, pool, expect=on_two, settings=DispatcherSettings(options=OFTEN))
    assert {task.state for task in tasks} == {TaskState.DONE}, tasks
    assert {stretch.slot_id for stretch in what_happened(runs)[1]} == together
    with RunReader.open(runs / "low" / "run.db") as reader:
        assert reader.facts().sizes.num_ranks == 2
    assert_low_as_alone(folder, runs)


@pytest.mark.slow
def test_soak_workers_that_hang_again_and_again(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    add_to_queue([folder / f"{name}.yaml" for name in TASKS], runs)
    pool = DisturbedPool(runs, [lambda process_id: os.kill(process_id, signal.SIGSTOP)] * 2)
    settings = DispatcherSettings(options=OFTEN, limits=Limits(silent_seconds=3.0))
    tasks = work_off(runs, pool, expect=in_order, settings=settings)
    assert {task.name: task.state for task in tasks} == dict.fromkeys(TASKS, TaskState.DONE), tasks
    assert pool.disturbances == []
    assert len(re.findall(r"the worker on CPU worker \d \(1 thread\) died: silent for", what_happened(runs)[0])) >= 2
    assert_as_alone(folder, runs)


@pytest.mark.slow
# ray itself leaves sockets and processes to the garbage collector
@pytest.mark.filterwarnings("ignore")
def test_soak_a_ray_node_that_is_lost(folder: Path, tmp_path: Path, nodes: RayNodes) -> None:
    runs = tmp_path / "runs"
    add_to_queue([folder / f"{name}.yaml" for name in TASKS], runs)
    pool = RayPool(target=WORKER_TARGET, log_directory=tmp_path / "workers", on_gpu=False)
    plain_wait = pool.wait
    lost: list[int] = []

    def wait(timeout_seconds: float) -> list[PoolEvent]:
        events = plain_wait(timeout_seconds)
        for event in events:
            if not lost and isinstance(event, WorkerMessage) and event.message.get("steps_done", 0) > 4:
                lost.append(event.slot_id)
                nodes.lose(1)
                nodes.add()
        return events

    pool.wait = wait  # type: ignore[method-assign]
    tasks = work_off(runs, pool, expect=in_order, settings=DispatcherSettings(options=OFTEN))
    assert {task.name: task.state for task in tasks} == dict.fromkeys(TASKS, TaskState.DONE), tasks
    said, stretches = what_happened(runs)
    assert "1 slot lost: node" in said
    assert "slots joined" in said
    assert {stretch.outcome for stretch in stretches} >= {"its slot was lost", "done"}
    assert_as_alone(folder, runs)
