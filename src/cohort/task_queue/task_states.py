"""The states of a queue's tasks: each change is stored, logged, and becomes an event for the planner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cohort.core.errors import CohortError, InputError
from cohort.core.units import counted, format_duration
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.placement.cluster_events import (
    ActiveTask,
    ClusterEvent,
    GpusLost,
    RoomFound,
    TaskArrived,
    TaskEnded,
    TaskInterrupted,
    TaskReestimated,
    TaskWithdrawn,
)
from cohort.scheduling.placement.records import TaskRequest, find_unplaceable
from cohort.task_queue.log import QueueLog
from cohort.task_queue.records import Expecting, QueuedTask, TaskState
from cohort.task_queue.replanner import Replanner
from cohort.task_queue.settings import DispatcherSettings
from cohort.task_queue.store import QueueStore
from cohort.task_queue.workers.messages import Heartbeat

__all__ = ["TaskStates"]

# an end that moves without an early exit is shown from this much on; every move is recorded
_SHOWN_SECONDS, _SHOWN_SHARE = 10.0, 0.25


class TaskStates:
    """Keeps store, log and planner in step; ``events`` collects what the planner has not been given yet."""

    def __init__(
        self,
        store: QueueStore,
        log: QueueLog,
        replanner: Replanner,
        *,
        directory: Path,
        expect: Expecting,
        work: Callable[[QueuedTask], SharedWork | None] | None = None,
        settings: DispatcherSettings,
        can_grow: bool = False,
    ) -> None:
        """Begin with the tasks that are in the store.

        Args:
            can_grow: Whether slots may join later, so that a task may wait for them.
        """
        self._store, self._log, self._replanner = store, log, replanner
        self._directory, self._expect, self._settings, self._can_grow = directory, expect, settings, can_grow
        self._work = work if settings.options.share_gpu else None
        # those that shared an executor in vain
        self._alone: set[str] = set()
        self.events: list[ClusterEvent] = []
        self.heartbeats: dict[str, Heartbeat] = {}
        self._known: set[str] = set()
        # by task: the most steps it ever had, when its end was last estimated, and the early exits shown by then
        self._furthest: dict[str, int] = {}
        self._reestimated_at: dict[str, float] = {}
        self._early_shown: dict[str, int] = {}

    def recover(self) -> None:
        """Requeue the tasks that an earlier dispatcher left running."""
        # a killed dispatcher took its workers with it, so the tasks ran until it was last seen, not until now
        last = self._log.last_dispatcher_seconds
        ended = self._log.now if last is None else last
        self._store.end_stretches(task=None, seconds=ended, outcome="the dispatcher died")
        for task in self._store.tasks():
            if task.state is TaskState.RUNNING:
                self._store.update(task.name, state=TaskState.QUEUED, reason="the dispatcher before this one died")

    def look_at_queue(self) -> None:
        """Take in tasks that other processes added to the queue, and take out those they removed."""
        for task in self._store.tasks():
            if task.is_withdrawn and not task.state.is_final:
                self._withdraw(task)
            elif task.state is TaskState.QUEUED and task.name not in self._known:
                self._arrive(task)

    def begun(self, task: str, *, device: str) -> None:
        self._store.update(task, state=TaskState.RUNNING, reason="")
        self._log.decide("start", task=task, text=f"begins on {device}")

    def done(self, task: str) -> None:
        # stored before it is logged and planned: a dispatcher that dies in between finds the task done
        self._store.update(task, state=TaskState.DONE, reason="", attempts=0)
        self._log.decide("end", task=task, text="done")
        self._leave(task, TaskEnded(at_seconds=self._log.now, task_id=task))

    def stopped(self, task: str, *, was_asked: bool) -> None:
        """Take in that a worker has saved a task's state and given it up."""
        found = self._store.task(task)
        if found is not None and found.is_withdrawn:
            if not found.state.is_final:
                self._drop(task)
        elif not was_asked:
            self.failed(task, "its worker was stopped from outside")

    def evicted(self, task: str, *, by: str) -> None:
        self._store.update(task, state=TaskState.QUEUED, reason=f"gave way to {by}")
        self._log.decide("preempt", task=task, text=f"gives way to {by}")

    def held(self, task: str, problems: Iterable[object]) -> None:
        """Hold a task back because its file or data are no longer what was added."""
        text = "; ".join(str(problem) for problem in problems)
        self._store.update(task, state=TaskState.HELD, reason=text)
        self._log.decide("hold", task=task, text=f"not begun: {text}")
        self._leave(task, TaskWithdrawn(at_seconds=self._log.now, task_id=task))

    def failed(self, task: str, message: str, *, is_final: bool = False) -> None:
        """Take in a fault: the task waits to go on from its checkpoint, or is given up after too many in a row."""
        before = self._store.task(task)
        assert before is not None, "workers run tasks of the queue"
        steps = self.heartbeats[task].steps_done if task in self.heartbeats else 0
        # only faults without progress count: a long task on a shaky node may die often and still end
        attempts = 1 if steps > self._furthest.get(task, 0) else before.attempts + 1
        self._furthest[task] = max(steps, self._furthest.get(task, 0))
        if is_final or attempts >= self._settings.limits.attempts:
            reason = message + (f" ({attempts} attempts)" if attempts > 1 else "")
            self._store.update(task, state=TaskState.FAILED, reason=reason, attempts=attempts)
            self._log.decide("fail", task=task, text=f"given up: {reason}")
            self._leave(task, TaskWithdrawn(at_seconds=self._log.now, task_id=task))
            return
        self._store.update(task, state=TaskState.QUEUED, reason=message, attempts=attempts)
        self._log.decide("fail", task=task, text=f"{message}; it will continue from its last checkpoint")
        active = self._replanner.active(task)
        if active is not None:
            self.events.append(
                TaskInterrupted(at_seconds=self._log.now, task_id=task, saved_share=self.saved_share(active))
            )

    def found_room(self, tasks: Sequence[str]) -> None:
        """Take in that the tasks of a slot leave room in their passes."""
        found = [(name, task) for name in tasks if (task := self._store.task(name)) is not None]
        works = [(name, work) for name, task in found if (work := self._work_of(task)) is not None]
        if len(works) == len(tasks):
            self.events.append(RoomFound(at_seconds=self._log.now, works=tuple(works)))

    def could_not_share(self, task: str, reason: str) -> None:
        """Take in that a task has no place next to others: it waits for a GPU of its own, which is no fault."""
        self._alone.add(task)
        self._store.update(task, state=TaskState.QUEUED, reason="waits for a GPU of its own")
        self._log.decide("share", task=task, text=f"trains by itself: {reason}")
        if self._replanner.active(task) is not None:
            self.events.append(TaskInterrupted(at_seconds=self._log.now, task_id=task))

    def _work_of(self, task: QueuedTask) -> SharedWork | None:
        """Return what is left of a task in an executor that it could share."""
        # after a fault it trains by itself: it may be what troubles the others, and they must not trouble it
        if self._work is None or task.attempts or task.name in self._alone:
            return None
        try:
            return self._work(task)
        except CohortError:
            # what is wrong with it shows when it runs
            return None

    def lost_slots(self, slot_ids: tuple[int, ...], tasks: Iterable[str], *, reason: str) -> None:
        saved = []
        for task in tasks:
            # a lost slot is no fault of its task, so it is no attempt either
            self._store.update(task, state=TaskState.QUEUED, reason=reason)
            active = self._replanner.active(task)
            if active is not None:
                saved.append((task, self.saved_share(active)))
        self._log.decide("worker", text=f"{len(slot_ids)} slot{'s' * (len(slot_ids) > 1)} lost: {reason}")
        self.events.append(GpusLost(at_seconds=self._log.now, gpu_ids=slot_ids, saved_shares=tuple(saved)))

    def give_up_stranded(self) -> None:
        """Give up the tasks that no slots are left for, where none can join."""
        state = self._replanner.state
        # without any slot the queue itself ends, and a resume may find more
        if self._can_grow or not state.cluster.num_gpus:
            return
        for request in state.stranded:
            self.failed(request.task_id, self._too_few_slots(request), is_final=True)

    def _too_few_slots(self, request: TaskRequest) -> str:
        least = min(option.num_gpus for option in request.options)
        there = self._replanner.state.cluster.most_gpus_for(request)
        return (
            f"it needs {counted(least, 'slot')} of one machine, and there {'is' if there == 1 else 'are'} {there}; "
            "write a smaller num_gpus, or run the queue where there are more"
        )

    def take_heartbeat(self, task: str, beat: Heartbeat) -> None:
        """Have the rest planned again when a task's end moved: trials exited early, or its speed changed."""
        self.heartbeats[task] = beat
        active, now = self._replanner.active(task), self._log.now
        if active is None or beat.seconds_left is None or beat.phase != "training":
            return
        before = max(active.ends_seconds - now, 0.0)
        settings = self._settings
        # heartbeats come four times a second and a plan may take the solver two seconds: both bounds keep it rare
        is_due = now - self._reestimated_at.get(task, float("-inf")) >= settings.reestimate_seconds
        moved = abs(beat.seconds_left - before)
        if not is_due or moved <= max(1.0, settings.reestimate_share * max(before, beat.seconds_left)):
            return
        self._reestimated_at[task] = now
        has_news = beat.num_early > self._early_shown.get(task, 0)
        self._early_shown[task] = beat.num_early
        early = f"; {beat.num_early} of {beat.num_trials} trials have exited early" if beat.num_early else ""
        # of a task that is late already, nothing was planned for now
        instead = f" instead of {format_duration(before)}" if before >= 1.0 else ""
        self._log.decide(
            "reestimate",
            task=task,
            text=f"about {format_duration(beat.seconds_left)} left{instead}{early}",
            numbers={"seconds_left": beat.seconds_left, "seconds_left_before": before, "num_early": beat.num_early},
            is_shown=has_news or moved >= max(_SHOWN_SECONDS, _SHOWN_SHARE * before),
        )
        self.events.append(TaskReestimated(at_seconds=now, task_id=task, remaining_seconds=beat.seconds_left))

    def done_shares(self) -> Mapping[str, float]:
        """Return, by active task, the done share of the work it started with."""
        return {task.request.task_id: self._done_share(task) for task in self._replanner.state.active}

    def saved_share(self, task: ActiveTask) -> float:
        """Return the share of the work a task started with that its last checkpoint holds."""
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
        beat = self.heartbeats.get(task.request.task_id)
        elapsed = max(self._log.now - task.started_seconds, 0.0)
        left = max(task.expected_seconds - elapsed, 0.0)
        if beat is not None and beat.seconds_left is not None:
            left = beat.seconds_left
        # never all of it: what is left is planned as a task, which must take more than 0 seconds
        return min(elapsed / (elapsed + left), 0.99) if elapsed + left > 0 else 0.0

    def _arrive(self, task: QueuedTask) -> None:
        # the planner refuses a task that no slot can hold, so it arrives at a look at which there are slots
        if not self._replanner.state.cluster.num_gpus or any(isinstance(event, GpusLost) for event in self.events):
            return
        self._known.add(task.name)
        # a task that was removed and comes back begins with a clean record
        for kept in (self.heartbeats, self._furthest, self._reestimated_at, self._early_shown):
            kept.pop(task.name, None)
        try:
            options = self._expect(task)
        except InputError as error:
            self.failed(task.name, str(error), is_final=True)
            return
        if task.expected_seconds is None:
            self._store.update(task.name, expected_seconds=options[0].seconds, options=options)
        request = TaskRequest(
            task_id=task.name, options=options, priority=task.priority, tenant=task.tenant, weight=task.weight
        )
        if find_unplaceable([request], self._replanner.state.cluster):
            if self._can_grow:
                # at each look, until there is room
                self._known.discard(task.name)
            else:
                self.failed(task.name, self._too_few_slots(request), is_final=True)
            return
        request = replace(request, work=self._work_of(task))
        self.events.append(TaskArrived(at_seconds=self._log.now, request=request))

    def _withdraw(self, task: QueuedTask) -> None:
        if task.state is TaskState.QUEUED:
            self._drop(task.name)
        elif self._replanner.active(task.name) is not None:
            # its worker is asked to stop because the plan no longer wants it; stopped() then drops the task
            self._leave(task.name, TaskWithdrawn(at_seconds=self._log.now, task_id=task.name))

    def _drop(self, task: str) -> None:
        self._store.update(task, state=TaskState.REMOVED, reason="removed by the user")
        self._log.decide("remove", task=task, text="removed by the user")
        self._leave(task, TaskWithdrawn(at_seconds=self._log.now, task_id=task))

    def _leave(self, task: str, ended: ClusterEvent) -> None:
        """Take a task out of the plan, wherever it is in it."""
        # a task that is put back in the queue later arrives again
        self._known.discard(task)
        # the planner has not seen an arrival that is still pending: without it the task never came
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
