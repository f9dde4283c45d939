"""When a worker has to be replaced."""

from __future__ import annotations

import pytest

from cohort.machine.cluster.worker_pool import Slot
from cohort.task_queue.settings import DispatcherSettings, Limits
from cohort.task_queue.workers.messages import Heartbeat
from cohort.task_queue.workers.worker_slots import WorkerSlot, WorkerSlotState

LIMITS = Limits(silent_seconds=10, still_seconds=100, start_seconds=50, stop_seconds=30)


def slot(state: WorkerSlotState, **fields: object) -> WorkerSlot:
    return WorkerSlot(slot=Slot(slot_id=0, node="local", device="cpu"), state=state, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("worker", "now", "said"),
    [
        (slot(WorkerSlotState.STARTING), 50.0, ""),
        (slot(WorkerSlotState.STARTING), 51.0, "sent nothing within 50 s of its start"),
        (slot(WorkerSlotState.IDLE), 10.0, ""),
        (slot(WorkerSlotState.IDLE), 11.0, "silent for 11 s"),
        (slot(WorkerSlotState.STOPPING, last_message_at=31.0), 31.0, "did not stop within 30 s"),
        (slot(WorkerSlotState.LOST), 1e9, ""),
        (slot(WorkerSlotState.IDLE, kill_reason="silent"), 1e9, ""),
    ],
)
def test_each_limit_has_its_fault(worker: WorkerSlot, now: float, said: str) -> None:
    assert worker.fault(LIMITS, now=now) == said


def test_a_step_that_hangs_is_a_fault_only_of_the_task_the_worker_holds() -> None:
    worker = slot(WorkerSlotState.BUSY, tasks=["a"], heartbeat=Heartbeat(task="a", phase="training", still_seconds=101))
    assert worker.fault(LIMITS, now=0.0) == "its task has made no progress for 101 s (training)"
    worker.tasks = ["b"]
    assert worker.fault(LIMITS, now=0.0) == ""
    # an idle worker has nothing that could move
    worker = slot(WorkerSlotState.IDLE, heartbeat=Heartbeat(still_seconds=1e6))
    assert worker.fault(LIMITS, now=0.0) == ""


def test_a_new_state_counts_as_a_word_from_the_worker() -> None:
    worker = slot(WorkerSlotState.IDLE)
    worker.enter(WorkerSlotState.BUSY, now=40.0)
    assert (worker.since, worker.last_message_at) == (40.0, 40.0)
    assert worker.fault(LIMITS, now=45.0) == ""


@pytest.mark.parametrize("name", ["silent_seconds", "still_seconds", "attempts", "deaths_in_a_row"])
def test_limits_are_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        DispatcherSettings(limits=Limits(**{name: 0}))
