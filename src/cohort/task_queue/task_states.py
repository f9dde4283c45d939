"""What becomes of a queue's tasks: each change of a task's state, its record, and the event the planner is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from cohort.core.errors import CohortError, InputError
from cohort.core.units import format_duration
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.scheduling.placement.cluster_events import (
    ActiveTask,
    ClusterEvent,
    GpusLost,
    TaskArrived,
    TaskEnded,
    TaskFailed,
    TaskReestimated,
    TaskWithdrawn,
)
from cohort.scheduling.placement.records import TaskOption, TaskRequest
from cohort.task_queue.log import QueueLog
from cohort.task_queue.messages import Beat
from cohort.task_queue.records import QueuedTask, TaskState
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.store import QueueStore

__all__ = ["TaskStates"]

# an end that moves without an exit is told from so much on; every one is recorded
_TOLD_SECONDS, _TOLD_SHARE = 10.0, 0.25


class TaskStates:
    """Keeps store, log and planner in step about tasks; ``events`` collects what the planner has yet to hear."""

    def __init__(
        self,
        store: QueueStore,
        log: QueueLog,
        replanner: Replanner,
        *,
        directory: Path,
        expect: Callable[[QueuedTask], float],
        most_attempts: int,
        reestimate_share: float,
        reestimate_seconds: float,
    ) -> None:
        """Join the parts; the arguments are those of the head and its settings."""
        self._store, self._log, self._replanner = store, log, replanner
        self._directory, self._expect, self._most_attempts = directory, expect, most_attempts
        self._reestimate_share, self._reestimate_seconds = reestimate_share, reestimate_seconds
        self.events: list[ClusterEvent] = []
        self.beats: dict[str, Beat] = {}
        self._known: set[str] = set()
        self._furthest: dict[str, int] = {}
        self._reestimated: dict[str, float] = {}
        self._early_told: dict[str, int] = {}

    def recover(self) -> None:
        """Put back what a head before this one left running."""
        last = self._log.last_head_seconds
        self._store.end_stretches(task=None, seconds=self._log.now if last is None else last, outcome="the head died")
        for task in self._store.tasks():
            if task.state is TaskState.RUNNING:
                self._store.update(task.name, state=TaskState.QUEUED, reason="the head before this one died")

    def look_at_queue(self) -> None:
        """Take in what others added to the queue, and take out what they removed."""
        for task in self._store.tasks():
            if task.is_withdrawn and not task.state.is_final:
                self._withdraw(task)
            elif task.state is TaskState.QUEUED and task.name not in self._known:
                self._arrive(task)

    def begun(self, task: str, *, device: str) -> None:
        """A worker was given the task."""
        self._store.update(task, state=TaskState.RUNNING, reason="")
        self._log.decide("start", task=task, text=f"begins on {device}")

    def done(self, task: str) -> None:
        """A task ended well."""
        self._store.update(task, state=TaskState.DONE, reason="", attempts=0)
        self._log.decide("end", task=task, text="done")
        self._leave(task, TaskEnded(at_seconds=self._log.now, task_id=task))

    def stopped(self, task: str, *, was_asked: bool) -> None:
        """A worker has saved a task's state and given it up."""
        found = self._store.task(task)
        if found is not None and found.is_withdrawn:
            if not found.state.is_final:
                self._drop(task)
        elif not was_asked:
            self.failed(task, "somebody stopped its worker")

    def evicted(self, task: str, *, by: str) -> None:
        """A task gives way; its worker is about to be asked."""
        self._store.update(task, state=TaskState.QUEUED, reason=f"gave way to {by}")
        self._log.decide("preempt", task=task, text=f"gives way to {by}")

    def held(self, task: str, problems: Iterable[object]) -> None:
        """A task is not begun, since it is no longer what was added."""
        text = "; ".join(str(problem) for problem in problems)
        self._store.update(task, state=TaskState.HELD, reason=text)
        self._log.decide("hold", task=task, text=f"not begun: {text}")
        self._leave(task, TaskWithdrawn(at_seconds=self._log.now, task_id=task))

    def failed(self, task: str, message: str, *, is_final: bool = False) -> None:
        """A task ended by a fault: it waits to go on from its checkpoint, unless that has become certain_to_stop."""
        before = self._store.task(task)
        assert before is not None, "workers run tasks of the queue"
        steps = self.beats[task].steps_done if task in self.beats else 0
        attempts = 1 if steps > self._furthest.get(task, 0) else before.attempts + 1
        self._furthest[task] = max(steps, self._furthest.get(task, 0))
        if is_final or attempts >= self._most_attempts:
            reason = message + (f" ({attempts} attempts)" if attempts > 1 else "")
            self._store.update(task, state=TaskState.FAILED, reason=reason, attempts=attempts)
            self._log.decide("fail", task=task, text=f"given up: {reason}")
            self._leave(task, TaskWithdrawn(at_seconds=self._log.now, task_id=task))
            return
        self._store.update(task, state=TaskState.QUEUED, reason=message, attempts=attempts)
        self._log.decide("fail", task=task, text=f"{message}; it will go on from its last checkpoint")
        active = self._replanner.active(task)
        if active is not None:
            self.events.append(TaskFailed(at_seconds=self._log.now, task_id=task, saved_share=self.saved_share(active)))

    def lost_slots(self, slot_ids: tuple[int, ...], tasks: Iterable[str], *, reason: str) -> None:
        """Slots are gone; their tasks wait again, through no fault of theirs."""
        saved = []
        for task in tasks:
            self._store.update(task, state=TaskState.QUEUED, reason=reason)
            active = self._replanner.active(task)
            if active is not None:
                saved.append((task, self.saved_share(active)))
        self._log.decide("worker", text=f"{len(slot_ids)} slot{'s' * (len(slot_ids) > 1)} lost: {reason}")
        self.events.append(GpusLost(at_seconds=self._log.now, gpu_ids=slot_ids, saved_shares=tuple(saved)))

    def heard(self, task: str, beat: Beat) -> None:
        """Have the rest planned anew when a task's end moved: trials exited early, or its speed is another."""
        self.beats[task] = beat
        active, now = self._replanner.active(task), self._log.now
        if active is None or beat.seconds_left is None or beat.phase != "training":
            return
        before = max(active.ends_seconds - now, 0.0)
        is_new = now - self._reestimated.get(task, -self._reestimate_seconds) >= self._reestimate_seconds
        threshold = max(1.0, self._reestimate_share * max(before, beat.seconds_left))
        if not is_new or abs(beat.seconds_left - before) <= threshold:
            return
        self._reestimated[task] = now
        moved = abs(beat.seconds_left - before)
        has_news = beat.num_early > self._early_told.get(task, 0) or moved >= max(_TOLD_SECONDS, _TOLD_SHARE * before)
        self._early_told[task] = beat.num_early
        early = f"; {beat.num_early} of {beat.num_trials} trials have exited early" if beat.num_early else ""
        self._log.decide(
            "reestimate",
            task=task,
            text=f"will end in {format_duration(beat.seconds_left)}, not in {format_duration(before)}{early}",
            numbers={"seconds_left": beat.seconds_left, "seconds_left_before": before, "num_early": beat.num_early},
            is_told=has_news,
        )
        self.events.append(TaskReestimated(at_seconds=now, task_id=task, remaining_seconds=beat.seconds_left))

    def done_shares(self) -> Mapping[str, float]:
        """Return, by active task, the share of the work it started with that is done."""
        return {task.request.task_id: self._done_share(task) for task in self._replanner.state.active}

    def saved_share(self, task: ActiveTask) -> float:
        """Return the share of the work it started with that a task's last checkpoint holds."""
        directory = RunDirectory(self._directory / task.request.task_id)
        try:
            with RunReader.open(directory.database) as reader:
                checkpoints, seconds = reader.checkpoints(), reader.run_seconds()
        except CohortError:
            return 0.0
        if not checkpoints or seconds <= 0:
            return 0.0
        return self._done_share(task) * min(checkpoints[-1].seconds / seconds, 1.0)

    def _done_share(self, task: ActiveTask) -> float:
        beat = self.beats.get(task.request.task_id)
        elapsed = max(self._log.now - task.started_seconds, 0.0)
        left = max(task.expected_seconds - elapsed, 0.0)
        if beat is not None and beat.seconds_left is not None:
            left = beat.seconds_left
        return min(elapsed / (elapsed + left), 0.99) if elapsed + left > 0 else 0.0

    def _arrive(self, task: QueuedTask) -> None:
        # it waits for a look at which there are slots, as far as is known
        if not self._replanner.state.cluster.num_gpus or any(isinstance(event, GpusLost) for event in self.events):
            return
        self._known.add(task.name)
        # one that was taken off and comes back begins with a clean record
        for kept in (self.beats, self._furthest, self._reestimated, self._early_told):
            kept.pop(task.name, None)
        try:
            is_new = not (self._directory / task.name / "run.db").exists()
            known = task.expected_seconds if is_new else None
            seconds = self._expect(task) if known is None else known
        except InputError as error:
            self.failed(task.name, str(error), is_final=True)
            return
        if task.expected_seconds is None:
            self._store.update(task.name, expected_seconds=seconds)
        options = (TaskOption(num_gpus=1, seconds=max(seconds, 1e-3)),)
        request = TaskRequest(task_id=task.name, options=options, priority=task.priority)
        self.events.append(TaskArrived(at_seconds=self._log.now, request=request))

    def _withdraw(self, task: QueuedTask) -> None:
        """Take a task out of the plan; one that runs is dropped when its worker has stopped."""
        if self._replanner.active(task.name) is None or task.state is TaskState.QUEUED:
            if task.state is TaskState.QUEUED:
                self._drop(task.name)
            return
        self._leave(task.name, TaskWithdrawn(at_seconds=self._log.now, task_id=task.name))

    def _drop(self, task: str) -> None:
        self._store.update(task, state=TaskState.REMOVED, reason="removed by the user")
        self._log.decide("remove", task=task, text="removed by the user")
        self._leave(task, TaskWithdrawn(at_seconds=self._log.now, task_id=task))

    def _leave(self, task: str, ended: ClusterEvent) -> None:
        """A task leaves the plan, wherever it is in it; whoever puts it back in the queue brings it in anew."""
        self._known.discard(task)
        # an arrival that the planner has not heard of yet never happened
        kept = [
            event for event in self.events if not (isinstance(event, TaskArrived) and event.request.task_id == task)
        ]
        if len(kept) < len(self.events):
            self.events = kept
        elif any(isinstance(event, TaskEnded | TaskWithdrawn) and event.task_id == task for event in kept):
            return
        elif self._replanner.active(task) is not None:
            self.events.append(ended)
        elif self._replanner.is_waiting(task):
            self.events.append(TaskWithdrawn(at_seconds=self._log.now, task_id=task))
