"""A pool of pretended workers on a clock that is set: tasks take the seconds that the test gives, to the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.core.clock import ManualClock
from cohort.machine.cluster.worker_pool import (
    Message,
    PoolEvent,
    Slot,
    SlotsGained,
    SlotsLost,
    WorkerDied,
    WorkerMessage,
)
from cohort.task_queue.workers.messages import (
    CannotShare,
    Heartbeat,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskError,
    TaskStopped,
    WorkerReport,
    as_message,
    read_message,
)


@dataclass
class FakeWorker:
    """One pretended worker; tasks that share it all go on as fast as one alone."""

    ready_at: float
    tasks: list[str] = field(default_factory=list)
    is_silent: bool = False
    is_still: bool = False
    also: tuple[int, ...] = ()


@dataclass
class FakePool:
    """Workers that are ready after ``start_seconds`` and beat every half second.

    Attributes:
        seconds: Work of each task; what was done stays done, as if every step were saved.
        failures: By task, the message of each failure to come; ``"input: ..."`` is the user's fault.
        unstartable: Slots whose workers die at their start.
        free_share: What workers say of the room in their passes.
        unfitting: Tasks that cannot share.
    """

    clock: ManualClock
    num_slots: int
    seconds: Mapping[str, float]
    start_seconds: float = 1.0
    failures: dict[str, list[str]] = field(default_factory=dict)
    unstartable: set[int] = field(default_factory=set)
    can_grow: bool = False
    free_share: float = 0.0
    unfitting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.all_slots = {
            index: Slot(slot_id=index, node="local", device=f"slot {index}") for index in range(self.num_slots)
        }
        self.workers: dict[int, FakeWorker] = {}
        self.done = dict.fromkeys(self.seconds, 0.0)
        self.pending: list[PoolEvent] = []
        self.started: list[tuple[float, int, str]] = []
        self.is_closed = False

    def slots(self) -> tuple[Slot, ...]:
        return tuple(self.all_slots.values())

    def start(self, slot_id: int, *, also: Sequence[int] = ()) -> None:
        for each in (slot_id, *also):
            assert each not in self.workers
            assert not any(each in worker.also for worker in self.workers.values()), "a device has one worker"
        if slot_id in self.unstartable:
            self.pending.append(WorkerDied(slot_id=slot_id, reason="no such device"))
            return
        ready_at = self.clock.monotonic() + self.start_seconds
        self.workers[slot_id] = FakeWorker(ready_at=ready_at, also=tuple(also))

    def send(self, slot_id: int, message: Message) -> None:
        worker = self.workers.get(slot_id)
        if worker is None or worker.is_silent:
            return
        match order := read_message(message):
            case RunTask(task=task) if worker.tasks and task in self.unfitting:
                self._say(slot_id, CannotShare(task=task, reason="other target_modules"))
            case RunTask(task=task, is_shared=is_shared):
                assert is_shared or not worker.tasks, "a task came to a worker that has one"
                assert (order.options["num_ranks"] or 1) == 1 + len(worker.also)
                self.started.append((self.clock.monotonic(), slot_id, task))
                if self.failures.get(task):
                    text = self.failures[task].pop(0)
                    is_input = text.startswith("input: ")
                    self._say(
                        slot_id, TaskError(task=task, message=text.removeprefix("input: "), is_input_error=is_input)
                    )
                    return
                worker.tasks.append(task)
            case StopTask(task=task) if task in worker.tasks:
                worker.tasks.remove(task)
                self._say(slot_id, TaskStopped(task=task))

    def kill(self, slot_id: int) -> None:
        if self.workers.pop(slot_id, None) is not None:
            self.pending.append(WorkerDied(slot_id=slot_id, reason="killed by SIGKILL"))

    def lose(self, slot_ids: Sequence[int]) -> None:
        for slot_id in slot_ids:
            self.workers.pop(slot_id, None)
            del self.all_slots[slot_id]
        self.pending.append(SlotsLost(slot_ids=tuple(slot_ids), reason="node lost"))

    def gain(self, slot_id: int) -> None:
        slot = self.all_slots[slot_id] = Slot(slot_id=slot_id, node="other", device=f"slot {slot_id}")
        self.pending.append(SlotsGained(slots=(slot,)))

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        if not self.pending:
            self._work(timeout_seconds)
        events, self.pending = self.pending, []
        return events

    def close(self) -> None:
        self.is_closed = True

    def _say(self, slot_id: int, report: WorkerReport) -> None:
        self.pending.append(WorkerMessage(slot_id=slot_id, message=as_message(report)))

    def _work(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock.monotonic()
        for slot_id, worker in self.workers.items():
            if worker.ready_at and now >= worker.ready_at:
                worker.ready_at = 0.0
                self._say(slot_id, Ready(process_id=slot_id))
            if worker.is_silent or worker.ready_at:
                continue
            if not worker.tasks:
                self._say(slot_id, Heartbeat())
            for task in list(worker.tasks):
                self._work_on(task, worker, slot_id, seconds)

    def _work_on(self, task: str, worker: FakeWorker, slot_id: int, seconds: float) -> None:
        if not worker.is_still:
            # perfect scaling: as many seconds of work as it has devices
            self.done[task] += seconds * (1 + len(worker.also))
        left = self.seconds[task] - self.done[task]
        beat = Heartbeat(
            task=task,
            phase="training",
            seconds_left=max(left, 0.0) / (1 + len(worker.also)),
            steps_done=int(100 * self.done[task]),
            still_seconds=1e9 if worker.is_still else 0.0,
            free_share=self.free_share,
        )
        self._say(slot_id, beat)
        if left <= 1e-9:
            worker.tasks.remove(task)
            self._say(slot_id, TaskDone(task=task))
