"""A cluster on a fake clock: what would these GPUs do with these tasks, in seconds instead of days.

Tasks arrive, end earlier than their worst case, fail and go on from checkpoints, GPUs are lost and join. The planner
sees only what it would see: worst cases, and ends when they happen. Everything is drawn by the task's name, so that
two policies meet the same luck.

Early exits come from recorded curves: the share of its planned steps that each recorded trial did (``replay_curves``
gives it); a task's share is the mean over draws for its trials.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from cohort.core.clock import ManualClock
from cohort.core.seeds import derive_seed
from cohort.planning.simulated_executors import SimulatedExecutors
from cohort.planning.simulation_records import RunSegment, SimulatedTask, SimulationReport, SimulationSettings
from cohort.scheduling.placement.cluster_events import (
    ActiveTask,
    ClusterEvent,
    ClusterState,
    GpusGained,
    GpusLost,
    RoomFound,
    TaskArrived,
    TaskEnded,
    TaskInterrupted,
    TaskReestimated,
)
from cohort.scheduling.placement.event_effects import apply_event
from cohort.scheduling.placement.records import Cluster, PlacementPlan, SolverStatus
from cohort.scheduling.placement.replan import Replan, replan, start_due
from cohort.scheduling.placement.sharing import Joined

__all__ = ["simulate"]


def simulate(
    tasks: Sequence[SimulatedTask],
    cluster: Cluster,
    *,
    settings: SimulationSettings | None = None,
    gpu_events: Sequence[GpusLost | GpusGained] = (),
) -> SimulationReport:
    """Run ``tasks`` on ``cluster`` in simulated time and report what happened; deterministic.

    Args:
        tasks: Each becomes known when it arrives.
        cluster: GPUs at the start.
        settings: The world.
        gpu_events: GPUs that are lost or join; what lost tasks had saved follows from the checkpoints.

    Raises:
        InputError: a task fits no GPUs that are there when it arrives.
    """
    simulation = _Simulation(tasks, cluster, settings=settings or SimulationSettings())
    for event in gpu_events:
        simulation.schedule(event)
    return simulation.run()


def _held_seconds(segments: Sequence[RunSegment]) -> float:
    """Return the seconds in which GPUs were held, each moment of a GPU once."""
    held, until = 0.0, dict[int, float]()
    for segment in sorted(segments, key=lambda segment: segment.start_seconds):
        for gpu in segment.gpu_ids:
            start = max(segment.start_seconds, until.get(gpu, segment.start_seconds))
            held += max(segment.end_seconds - start, 0.0)
            until[gpu] = max(until.get(gpu, 0.0), segment.end_seconds)
    return held


class _Simulation:
    """One run: the queue of events to come, the cluster's state, and what has happened."""

    def __init__(self, tasks: Sequence[SimulatedTask], cluster: Cluster, *, settings: SimulationSettings) -> None:
        self.settings = settings
        self.clock = ManualClock()
        self.state = ClusterState(cluster=cluster)
        self.plan: PlacementPlan | None = None
        self.shares = {task.request.task_id: self._draw_share(task) for task in tasks}
        self.queue: list[tuple[float, int, ClusterEvent, int | None]] = []
        self.num_scheduled = 0
        self.attempts: Counter[str] = Counter()
        self.segments: list[RunSegment] = []
        self.statuses: Counter[SolverStatus] = Counter()
        self.planned_makespan = 0.0
        self.num_failures = self.num_evictions = self.num_joined = 0
        self.executors = SimulatedExecutors()
        # by task, of its present run: how long it takes, and when its worker dies
        self.lengths: dict[str, float] = {}
        self.deaths: dict[str, float] = {}
        self.available = 0.0
        self.last_end = 0.0
        for task in tasks:
            self.schedule(TaskArrived(at_seconds=task.request.arrival_seconds, request=task.request))

    def schedule(self, event: ClusterEvent, *, attempt: int | None = None) -> None:
        """Let ``event`` happen at its time; one about an attempt to run a task only if that attempt still runs."""
        # The running number breaks ties: events of the same moment happen in the order in which they were scheduled.
        heapq.heappush(self.queue, (event.at_seconds, self.num_scheduled, event, attempt))
        self.num_scheduled += 1

    def run(self) -> SimulationReport:
        while self.queue:
            _, _, event, attempt = heapq.heappop(self.queue)
            # The end of a run that was evicted or lost its GPUs is still in the queue.
            if attempt is not None and not self._runs(event, attempt):
                continue
            if isinstance(event, RoomFound):
                self._handle_room(event)
                continue
            self._let_time_pass(event.at_seconds)
            # arrivals at the same moment are planned together: only the last of them asks for a plan
            if isinstance(event, TaskArrived) and self._another_arrives(event.at_seconds):
                self.state, _ = apply_event(self.state, event)
                continue
            self._handle(self._with_savings(event))
        self.segments.sort(key=lambda segment: (segment.start_seconds, segment.task_id))
        return SimulationReport(
            segments=tuple(self.segments),
            planned_makespan_seconds=self.planned_makespan,
            makespan_seconds=self.last_end,
            gpu_seconds_held=_held_seconds(self.segments),
            gpu_seconds_available=self.available,
            num_replans=sum(self.statuses.values()),
            statuses=tuple(sorted(self.statuses.items(), key=lambda item: item[0].value)),
            num_failures=self.num_failures,
            num_evictions=self.num_evictions,
            unfinished=tuple(task.task_id for task in (*self.state.waiting, *self.state.stranded)),
            num_joined=self.num_joined,
        )

    def _another_arrives(self, now: float) -> bool:
        return bool(self.queue) and self.queue[0][0] == now and isinstance(self.queue[0][2], TaskArrived)

    def _runs(self, event: ClusterEvent, attempt: int) -> bool:
        assert isinstance(event, TaskEnded | TaskInterrupted | TaskReestimated), "only these are about an attempt"
        running = {task.request.task_id for task in self.state.active}
        return event.task_id in running and self.attempts[event.task_id] == attempt

    def _let_time_pass(self, now: float) -> None:
        seconds = now - self.clock.monotonic()
        # Idle GPUs before the first arrival and after the last end are no waste of the plan's.
        if self.state.active or self.state.waiting:
            self.available += seconds * self.state.cluster.num_gpus
        self.clock.advance(seconds)

    def _with_savings(self, event: ClusterEvent) -> ClusterEvent:
        """Return the event with what checkpoints hold of the tasks that it stops."""
        now = self.clock.monotonic()
        if isinstance(event, GpusLost):
            hit = [task for task in self.state.active if set(task.gpu_ids) & set(event.gpu_ids)]
            saved = tuple((task.request.task_id, self._saved_share(task, now)) for task in hit)
            return GpusLost(at_seconds=now, gpu_ids=event.gpu_ids, saved_shares=saved)
        return event

    def _saved_share(self, task: ActiveTask, now: float) -> float:
        """Return the share of the work of this run that its last checkpoint holds."""
        saves = (now - task.started_seconds) // self.settings.checkpoint_seconds
        return min(saves * self.settings.checkpoint_seconds / self.lengths[task.request.task_id], 1.0)

    def _handle(self, event: ClusterEvent) -> None:
        now = self.clock.monotonic()
        # checkpoints are what an evicted task would go on from
        saved = tuple(replace(task, saved_share=self._saved_share(task, now)) for task in self.state.active)
        self.state = replace(self.state, active=saved)
        before = {task.request.task_id: task for task in self.state.active}
        decided = replan(
            self.state, event, previous=self.plan, settings=self.settings.placement, policy=self.settings.policy
        )
        self._record(event, before, decided, now)
        self.state, self.plan = decided.state, decided.plan
        if isinstance(event, TaskInterrupted):
            self._interrupt_mates(before[event.task_id], now)
        if decided.joined is not None:
            self._join(decided.joined)
        if decided.plan is None:
            return
        self.statuses[decided.plan.status] += 1
        # Only tasks of the start are in the first plan; later ones would make the comparison unfair.
        if now == 0.0:
            self.planned_makespan = decided.plan.makespan_seconds
        self.state, started = start_due(self.state, decided.plan)
        for task in started:
            self._start(task)
        if isinstance(event, TaskArrived):
            # it may train where others have left room before
            for gpu_ids in {task.gpu_ids for task in self.state.active}:
                room_at = self.executors.room_at(gpu_ids)
                if room_at is not None and room_at <= now:
                    self._schedule_room(gpu_ids, at=now)

    def _handle_room(self, room: RoomFound) -> None:
        """Let a task join, where the executor still has the tasks that it had when this was scheduled."""
        holders = {task.request.task_id: task.gpu_ids for task in self.state.active}
        names = [name for name, _ in room.works if name in holders]
        if not names or not self.state.waiting:
            return
        gpu_ids = holders[names[0]]
        room_at = self.executors.room_at(gpu_ids)
        works = tuple(
            (name, work) for name, work in self.executors.left(gpu_ids, now=room.at_seconds) if name in holders
        )
        if room_at is None or room_at > room.at_seconds or not works:
            return
        self._let_time_pass(room.at_seconds)
        self._handle(RoomFound(at_seconds=room.at_seconds, works=works))

    def _schedule_room(self, gpu_ids: tuple[int, ...], *, at: float | None) -> None:
        works = self.executors.left(gpu_ids, now=self.clock.monotonic())
        if self.settings.share_gpu and at is not None and works:
            self.schedule(RoomFound(at_seconds=max(at, self.clock.monotonic()), works=works))

    def _join(self, joined: Joined) -> None:
        """Let a task go on in the executor of others, all of which end at other times than before."""
        self.num_joined += 1
        task, now = joined.task, self.clock.monotonic()
        name, work = task.request.task_id, task.request.work
        assert work is not None, "only a task that can share joins others"
        own = work.shortened(self.shares[name])
        ends = self.executors.join(name, own, hosts=joined.hosts, gpu_ids=task.gpu_ids, now=now)
        started = {entry.request.task_id: entry.started_seconds for entry in self.state.active}
        self.attempts[name] += 1
        self.deaths[name] = now + self._draw_death(task, self.attempts[name])
        for other, end in ends.items():
            # events of its run so far are of the past
            self.attempts[other] += other != name
            self.lengths[other] = max(end - started[other], 1e-9)
            self._schedule_end(other, started=started[other], end=end)
        self._schedule_room(task.gpu_ids, at=self.executors.room_at(task.gpu_ids))

    def _interrupt_mates(self, task: ActiveTask, now: float) -> None:
        # they were in the same process
        for mate in self.state.active:
            if mate.gpu_ids == task.gpu_ids:
                saved = self._saved_share(mate, now)
                name = mate.request.task_id
                died = TaskInterrupted(at_seconds=now, task_id=name, saved_share=saved)
                self.schedule(died, attempt=self.attempts[name])

    def _schedule_end(self, name: str, *, started: float, end: float) -> None:
        """Schedule the end of a task's run, or the death of its worker before."""
        attempt, length = self.attempts[name], end - started
        if (death := self.deaths[name]) < end:
            step = self.settings.checkpoint_seconds
            saved = min((death - started) // step * step / length, 1.0)
            self.schedule(TaskInterrupted(at_seconds=death, task_id=name, saved_share=saved), attempt=attempt)
        else:
            self.schedule(TaskEnded(at_seconds=end, task_id=name), attempt=attempt)

    def _record(self, event: ClusterEvent, before: dict[str, ActiveTask], decided: Replan, now: float) -> None:
        self.num_failures += len(decided.interrupted)
        self.num_evictions += len(decided.evicted)
        still = {task.request.task_id for task in decided.state.active}
        for name, task in before.items():
            if name not in still:
                has_ended = isinstance(event, TaskEnded) and event.task_id == name
                self.segments.append(
                    RunSegment(
                        task_id=name,
                        gpu_ids=task.gpu_ids,
                        start_seconds=task.started_seconds,
                        end_seconds=now,
                        has_ended=has_ended,
                    )
                )
                if has_ended:
                    self.last_end = now

    def _start(self, task: ActiveTask) -> None:
        """Schedule the end of a task that starts now, or its worker's death, and the new estimate before."""
        name, now = task.request.task_id, self.clock.monotonic()
        self.attempts[name] += 1
        attempt = self.attempts[name]
        actual = self._actual_seconds(task)
        death = self._draw_death(task, attempt)
        self.lengths[name], self.deaths[name] = actual, now + death
        self._schedule_end(name, started=now, end=now + actual)
        self.executors.clear(task.gpu_ids)
        if (work := task.request.work) is not None and len(task.gpu_ids) == 1:
            own = work.shortened(self.shares[name])
            self.executors.start(name, own, gpu_ids=task.gpu_ids, now=now, seconds=actual)
            self._schedule_room(task.gpu_ids, at=self.executors.room_at(task.gpu_ids))
        share = self.settings.reestimate_share
        if share is not None and share * task.expected_seconds < min(actual, death):
            known = share * task.expected_seconds
            learnt = TaskReestimated(at_seconds=now + known, task_id=name, remaining_seconds=actual - known)
            self.schedule(learnt, attempt=attempt)

    def _actual_seconds(self, task: ActiveTask) -> float:
        return task.request.seconds_on(len(task.gpu_ids)) * self.shares[task.request.task_id]

    def _draw_share(self, task: SimulatedTask) -> float:
        shares = task.exit_shares or self.settings.exit_shares
        # By the task's name and trial, not by order: two policies must meet the same luck.
        draws = (
            shares[derive_seed(self.settings.seed, "exit", task.request.task_id, trial) % len(shares)]
            for trial in range(task.num_trials)
        )
        return sum(draws) / task.num_trials

    def _draw_death(self, task: ActiveTask, attempt: int) -> float:
        """Return the seconds until the worker dies, exponentially distributed; infinite without failures."""
        rate = self.settings.failures_per_gpu_hour * len(task.gpu_ids) / 3600
        if rate == 0:
            return math.inf
        # In (0, 1]: the logarithm of 0 is not defined.
        uniform = (derive_seed(self.settings.seed, "death", task.request.task_id, attempt) + 1) / (1 << 63)
        return -math.log(uniform) / rate
