"""The plan of a queue as it changes: the planner's view of which tasks run and wait, updated event by event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from cohort.scheduling.placement.cluster_events import ActiveTask, ClusterEvent, ClusterState, RoomFound, TaskArrived
from cohort.scheduling.placement.event_effects import advance, apply_arrivals, apply_event
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import Cluster, PlacementPlan, TaskRequest
from cohort.scheduling.placement.replan import Replan, replan, start_due
from cohort.scheduling.placement.sharing import Joined
from cohort.scheduling.placement.task_order import ListPolicy
from cohort.task_queue.tenant_turns import FairTurns

__all__ = ["Changes", "Replanner"]

# an event in a live queue must be answered at once; a plan that the solver has not proven by then is still a good one
LIVE_PLACEMENT = PlacementSettings(work_limit=0.5, time_limit_seconds=2.0, most_solver_tasks=40)


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What follows from events.

    Attributes:
        plan: The new plan in seconds from now; None when nothing waits.
        reason: Why there is one.
        evicted: Tasks that give way to more urgent ones, and wait again.
        started: Tasks that take their slots now, or as soon as the worker there has stopped.
        joined: Tasks that join the executor of running ones now.
    """

    plan: PlacementPlan | None
    reason: str
    evicted: tuple[str, ...]
    started: tuple[ActiveTask, ...]
    joined: tuple[Joined, ...] = ()


class Replanner:
    """Holds the cluster's state and the plan; every change goes through :meth:`take`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        policy: ListPolicy | None,
        settings: PlacementSettings = LIVE_PLACEMENT,
        turns: FairTurns | None = None,
    ):
        """Begin with an empty queue.

        Args:
            policy: Plan by this list policy instead of the planner, while no task names a tenant.
            turns: What tenants were charged so far.
        """
        self.turns = turns or FairTurns()
        self.state = ClusterState(cluster=cluster)
        self.plan: PlacementPlan | None = None
        self._policy, self._settings = policy, settings

    def take(self, events: Sequence[ClusterEvent], *, saved_shares: Mapping[str, float]) -> Changes:
        """Take in what happened, plan again, and start what the plan starts now.

        Args:
            events: In their order; at least one.
            saved_shares: By active task, the share of the work it started with that it could go on from.

        Raises:
            InputError: a task arrived that fits no slot there is.
        """
        active = (replace(task, saved_share=saved_shares.get(task.request.task_id, 0.0)) for task in self.state.active)
        self.state = replace(self.state, active=tuple(active))
        rooms = [event for event in events if isinstance(event, RoomFound)]
        others = [event for event in events if not isinstance(event, RoomFound)]
        # room that no task takes is no reason for another plan
        found = Changes(plan=None, reason="no task joins", evicted=(), started=())
        if others:
            found = self._take(others)
        for room in rooms:
            found = self._take_room(room, found)
        return found

    def _take(self, events: Sequence[ClusterEvent]) -> Changes:
        # one plan for all events of a turn: a node that is lost would otherwise cost a solver run for each of its tasks
        *before, last = events
        for arrive, same in groupby(before, key=lambda event: isinstance(event, TaskArrived)):
            if arrive:
                self.state = apply_arrivals(self.state, [event for event in same if isinstance(event, TaskArrived)])
                continue
            for event in same:
                self.state, _ = apply_event(self.state, event)
        decided = self._replan(last)
        started = self._follow(decided)
        several = f" and {len(before)} more event{'s' * (len(before) > 1)}" if before else ""
        return Changes(plan=decided.plan, reason=decided.reason + several, evicted=decided.evicted, started=started)

    def _take_room(self, room: RoomFound, found: Changes) -> Changes:
        """Let a task join the executor that has room, where the planner finds one; else nothing changes."""
        decided = self._replan(room)
        if decided.joined is None:
            return found
        started = self._follow(decided)
        return replace(
            found,
            plan=decided.plan,
            reason=decided.reason,
            started=(*found.started, *started),
            joined=(*found.joined, decided.joined),
        )

    def _replan(self, event: ClusterEvent) -> Replan:
        return replan(
            self.state,
            event,
            previous=self.plan,
            settings=self._settings,
            policy=self._policy,
            fair_order=self._fair_order,
        )

    def _fair_order(self, after: ClusterState) -> Sequence[TaskRequest] | None:
        # of a queue of one person the shortest plan is the best
        if not _has_tenants(after):
            return None
        # what ended is settled before it is asked who is next
        self.turns.follow(after)
        return self.turns.order(after.waiting)

    def _follow(self, decided: Replan) -> tuple[ActiveTask, ...]:
        """Take over what was decided; return the tasks that start now."""
        self.state, self.plan = decided.state, decided.plan
        started: tuple[ActiveTask, ...] = ()
        if decided.plan is not None:
            self.state, started = start_due(self.state, decided.plan)
        # also the last task of the last tenant: it is charged when it ends, not when another one comes
        if self.has_tenants or self.turns.has_active:
            self.turns.follow(self.state)
        return started

    def advance(self, now_seconds: float) -> None:
        # the clock of a queue follows the wall clock across restarts, which may be set back
        self.state = advance(self.state, now_seconds=max(now_seconds, self.state.now_seconds))

    @property
    def has_tenants(self) -> bool:
        return _has_tenants(self.state)

    def active(self, task_id: str) -> ActiveTask | None:
        """Return a task that holds a slot in the plan; None when it does not."""
        return next((task for task in self.state.active if task.request.task_id == task_id), None)

    def wanted_in(self, slot_id: int) -> tuple[str, ...]:
        """Return the tasks that the plan wants in a slot now: several share its executor, the first came first."""
        return tuple(task.request.task_id for task in self.state.active if slot_id in task.gpu_ids)

    def gang_in(self, slot_id: int) -> tuple[int, ...]:
        """Return all slots of the task that the plan wants in a slot now; none where it wants none."""
        return next((task.gpu_ids for task in self.state.active if slot_id in task.gpu_ids), ())

    def is_waiting(self, task_id: str) -> bool:
        return any(task.task_id == task_id for task in (*self.state.waiting, *self.state.stranded))


def _has_tenants(state: ClusterState) -> bool:
    requests = (*state.waiting, *state.stranded, *(task.request for task in state.active))
    return any(request.tenant for request in requests)
