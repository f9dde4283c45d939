"""Two tasks of a queue in one worker's executor, the worker killed meanwhile: each ends as it would have alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from cohort.engine.tune import RunOptions, tune
from cohort.machine.cluster.local import LocalPool, cpu_slots
from cohort.machine.cluster.worker_pool import PoolEvent, WorkerMessage
from cohort.runs.directory import QUEUE_DATABASE
from cohort.scheduling.placement.records import TaskOption
from cohort.task_queue.operations import add_to_queue, work_off
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.status import queue_status_json, read_queue_status
from cohort.task_queue.store import QueueStore
from cohort.task_queue.workers.pool import WORKER_TARGET
from tests.end_to_end.task_queue.test_shared_session import in_any_order
from tests.end_to_end.tiny_tasks import tiny_data, tiny_task, write_inputs
from tests.scheduling.placement.placement_instances import small_work

TASKS: dict[str, dict[str, Any]] = {
    "host": {"training": {"max_steps": 440}, "search": {"space": {"learning_rate": [1e-3, 1e-2], "r": [4]}}},
    "guest": {
        "training": {"max_steps": 160, "seed": 3},
        "search": {"space": {"learning_rate": [1e-3, 3e-2], "r": [2, 8]}},
    },
}


def seconds_of(task: QueuedTask) -> float:
    # the host first, by whatever order of tasks as long as these
    return 1000.0 / float(task.task["training"]["max_steps"])


class KillingPool(LocalPool):
    """One worker, killed once while both tasks train in it."""

    def __init__(self, runs: Path) -> None:
        super().__init__(cpu_slots(1, num_threads=1), target=WORKER_TARGET, log_directory=runs / "workers")
        self.runs, self.steps, self.shown = runs, dict[str, int](), dict[str, Any]()
        self.stopped: int | None = None

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        if self.stopped is not None and not self.shown:
            # the dispatcher has recorded by now what came in one batch with the guest's steps
            self.shown = queue_status_json(read_queue_status(self.runs))
            os.kill(self.stopped, signal.SIGKILL)
        events = super().wait(timeout_seconds)
        for event in events:
            if isinstance(event, WorkerMessage) and event.message.get("task"):
                self.steps[event.message["task"]] = event.message.get("steps_done", 0)
        process_id = self.process_id(0)
        if self.stopped is None and process_id is not None and self.steps.get("guest", 0) > 4:
            # neither task ends before the status is read, however slow this machine is
            os.kill(process_id, signal.SIGSTOP)
            self.stopped = process_id
        return events


def test_tasks_that_share_a_killed_worker_end_as_alone(tmp_path: Path) -> None:
    folder, runs = write_inputs(tmp_path / "in"), tmp_path / "runs"
    torch.set_num_threads(1)
    for name, sections in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps(tiny_data(**sections)))
        tune(tiny_task(folder, **sections), folder / "alone" / name)

    def expect(task: QueuedTask) -> tuple[TaskOption, ...]:
        return (TaskOption(num_gpus=1, seconds=seconds_of(task)),)

    add_to_queue([folder / f"{name}.yaml" for name in TASKS], runs, expect=expect)
    pool = KillingPool(runs)
    done = work_off(
        runs,
        pool,
        expect=expect,
        # on a CPU no task shares by itself: its passes are never too small
        work=lambda task: small_work(seconds=seconds_of(task)),
        settings=DispatcherSettings(options=RunOptions(checkpoint_seconds=0.2), room_seconds=0.1, look_seconds=0.1),
    )
    assert {task.state for task in done} == {TaskState.DONE}
    shown = {task["name"]: task["shares_with"] for task in pool.shown["tasks"]}
    assert shown == {"host": ["guest"], "guest": ["host"]}
    with QueueStore.open(runs / QUEUE_DATABASE) as store:
        texts = [decision.text for decision in store.decisions() if decision.kind == "share"]
        outcomes = [stretch.outcome for stretch in store.stretches()]
    assert len(texts) == 1
    assert "trains in the passes of host" in texts[0]
    assert outcomes == ["its worker died", "its worker died", "done", "done"]
    for name in TASKS:
        assert in_any_order(runs / name) == in_any_order(folder / "alone" / name)
