"""A pool whose workers are this process: a task is tuned when it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cohort.core.errors import CohortError
from cohort.engine.tune import RunOptions, tune
from cohort.machine.cluster.worker_pool import Message, PoolEvent, Slot, WorkerMessage
from cohort.task_queue.workers.messages import (
    Ready,
    RunTask,
    TaskDone,
    TaskError,
    WorkerReport,
    as_message,
    read_message,
)
from cohort.tasks.loading import task_from_mapping


class InlinePool:
    """Slots that take turns."""

    can_grow = False

    def __init__(self, num_slots: int) -> None:
        self._slots = tuple(Slot(slot_id=index, node="local", device=f"slot {index}") for index in range(num_slots))
        self._pending: list[PoolEvent] = []

    def slots(self) -> tuple[Slot, ...]:
        return self._slots

    def start(self, slot_id: int, *, also: Sequence[int] = ()) -> None:
        self._say(slot_id, Ready(process_id=0))

    def send(self, slot_id: int, message: Message) -> None:
        order = read_message(message)
        assert isinstance(order, RunTask), "nothing is stopped here"
        task = task_from_mapping(order.resolved, base_directory=Path("/"), name=order.source)
        try:
            tune(task, order.run_directory, options=RunOptions(**order.options))
        except CohortError as error:
            self._say(slot_id, TaskError(task=order.task, message=str(error), is_input_error=True))
        else:
            self._say(slot_id, TaskDone(task=order.task))

    def kill(self, slot_id: int) -> None:
        raise AssertionError("nothing hangs here")

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        events, self._pending = self._pending, []
        return events

    def close(self) -> None:
        pass

    def _say(self, slot_id: int, report: WorkerReport) -> None:
        self._pending.append(WorkerMessage(slot_id=slot_id, message=as_message(report)))
