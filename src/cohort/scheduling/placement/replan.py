"""What to do when something happens: which tasks go on, which give way, and whether a new plan is needed.

Running tasks are never moved, unless a more urgent task that waits could not start otherwise: then the least urgent
and last started give way, no more of them than needed, and go on later from their checkpoints.

Events change a :class:`ClusterState`; deciding is pure. Times are seconds of the run's own clock.

Source: ALTO 7.2 (arrival and completion); failures, GPUs and priorities are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    TaskWithdrawn,
)
from cohort.scheduling.placement.event_effects import apply_event, stopped
from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import (
    PlacementPlan,
    RunningTask,
    TaskRequest,
)
from cohort.scheduling.placement.rolling_plan import fill_idle_nodes
from cohort.scheduling.placement.sharing import Joined, choose_joining, joined_state
from cohort.scheduling.placement.task_order import ListPolicy, list_plan, plan_in_order, with_least_work
from cohort.scheduling.placement.task_planner import plan_placement

__all__ = ["FairOrder", "Replan", "replan", "running_tasks", "start_due"]

FairOrder = Callable[[ClusterState], Sequence[TaskRequest] | None]
"""Returns the waiting tasks in the order in which their tenants should have GPUs; None where tenants have no say."""

DEFAULTS = PlacementSettings()
# the planner needs intervals of some length
MOMENT_SECONDS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Replan:
    """What to do now.

    Attributes:
        state: After the event; tasks that give way are waiting in it.
        plan: Of all tasks, in seconds from now; None when nothing waits.
        reason: Why there is a new plan, or why not.
        evicted: Running tasks that give way to more urgent ones.
        joined: A task that joins the executor of running ones; it runs in ``state``.
        interrupted: Tasks that the event stopped: they wait with the work that no checkpoint holds.
    """

    state: ClusterState
    plan: PlacementPlan | None
    reason: str
    evicted: tuple[str, ...] = ()
    interrupted: tuple[str, ...] = ()
    joined: Joined | None = None


def replan(
    state: ClusterState,
    event: ClusterEvent,
    *,
    previous: PlacementPlan | None = None,
    settings: PlacementSettings = DEFAULTS,
    policy: ListPolicy | None = None,
    fair_order: FairOrder | None = None,
) -> Replan:
    """Take in an event and return the plan that follows from it.

    Args:
        state: Before the event.
        event: What happened.
        previous: The plan so far. With more waiting tasks than the solver is asked about, an end only moves up what
            follows it: the order of the previous plan is kept.
        settings: Limits of the solver.
        policy: Plan by this list policy, for comparison, instead of the solver.
        fair_order: Where tenants share the GPUs, who comes first after the event; the plan then follows this order
            instead of being the shortest.

    Raises:
        InputError: a task arrived that fits no GPUs there are.
        ValueError: the event is about a task that is not there, or lies in the past.
    """
    after, interrupted = apply_event(state, event)
    after, evicted = _make_way(after)
    joined: Joined | None = None
    # by the plan that stands: only a task that it has on this GPU next joins the tasks there
    if isinstance(event, RoomFound):
        joined = choose_joining(after, event, plan=previous)
        if joined is None:
            return Replan(state=after, plan=previous, reason="no task joins", evicted=evicted)
        after = joined_state(after, joined)
    if not after.waiting:
        return Replan(state=after, plan=None, reason="nothing waits", interrupted=interrupted, joined=joined)
    running = running_tasks(after)
    # An end or a new estimate brings no task: the order stands, and only the times move. Without a solver a new list
    # plan could reorder everything for nothing.
    keeps_order = (
        isinstance(event, TaskEnded | TaskWithdrawn | TaskReestimated | RoomFound)
        and not evicted
        and len(after.waiting) > settings.most_solver_tasks
    )
    if fair_order is not None and (turns := fair_order(after)) is not None:
        plan = _in_fair_order(turns, after, running=running, settings=settings)
    elif policy is not None:
        plan = list_plan(after.waiting, after.cluster, policy=policy, running=running)
    elif previous is not None and keeps_order:
        place = {placement.task_id: index for index, placement in enumerate(previous.placements)}
        order = sorted(after.waiting, key=lambda task: (-task.priority, place.get(task.task_id, len(place))))
        listed = plan_in_order(order, after.cluster, running=running, policy=previous.policy)
        plan = fill_idle_nodes(listed, order, after.cluster, settings=settings, running=running)
    else:
        plan = plan_placement(after.waiting, after.cluster, running=running, settings=settings)
    return Replan(
        state=after, plan=plan, reason=_reason_of(event), evicted=evicted, interrupted=interrupted, joined=joined
    )


def _in_fair_order(
    order: Sequence[TaskRequest],
    state: ClusterState,
    *,
    running: Sequence[RunningTask],
    settings: PlacementSettings,
) -> PlacementPlan:
    # widths as in a long queue: what one takes beyond its least work is taken from the others' shares
    narrow = with_least_work(order, state.cluster)
    listed = plan_in_order(narrow, state.cluster, running=running, policy="fair shares")
    return fill_idle_nodes(listed, narrow, state.cluster, settings=settings, running=running)


def running_tasks(state: ClusterState) -> list[RunningTask]:
    """Return the active tasks as planners see them: of those that share a GPU, the one that ends last."""
    last: dict[tuple[int, ...], ActiveTask] = {}
    for task in state.active:
        other = last.get(task.gpu_ids)
        if other is None or task.ends_seconds > other.ends_seconds:
            last[task.gpu_ids] = task
    return [
        RunningTask(
            task_id=task.request.task_id,
            gpu_ids=task.gpu_ids,
            # a task that overruns its estimate holds its GPUs for a moment more, for as long as it does
            remaining_seconds=max(task.ends_seconds - state.now_seconds, MOMENT_SECONDS),
            priority=task.request.priority,
        )
        for task in last.values()
    ]


def start_due(state: ClusterState, plan: PlacementPlan) -> tuple[ClusterState, tuple[ActiveTask, ...]]:
    """Return the state after everything that ``plan`` starts now has started, and what has."""
    waiting = {task.task_id: task for task in state.waiting}
    started = tuple(
        ActiveTask(
            request=waiting[placement.task_id],
            gpu_ids=placement.gpu_ids,
            started_seconds=state.now_seconds,
            expected_seconds=placement.end_seconds - placement.start_seconds,
        )
        for placement in plan.placements
        # times of a plan count from now
        if placement.task_id in waiting and placement.start_seconds <= 0
    )
    names = {task.request.task_id for task in started}
    left = tuple(task for task in state.waiting if task.task_id not in names)
    return replace(state, waiting=left, active=(*state.active, *started)), started


def _reason_of(event: ClusterEvent) -> str:
    match event:
        case TaskArrived():
            return f"task {event.request.task_id} arrived"
        case TaskEnded():
            return f"task {event.task_id} ended"
        case TaskWithdrawn():
            return f"task {event.task_id} was withdrawn"
        case TaskInterrupted():
            return f"task {event.task_id} failed"
        case TaskReestimated():
            return f"task {event.task_id} will end at another time"
        case RoomFound():
            return f"there is room next to {', '.join(name for name, _ in event.works)}"
        case GpusLost():
            return f"{len(event.gpu_ids)} GPUs were lost"
        case GpusGained():
            return f"{len(event.gpu_ids)} GPUs joined"


def _make_way(state: ClusterState) -> tuple[ClusterState, tuple[str, ...]]:
    """Return the state in which less urgent tasks have given way to waiting ones that could start at once."""
    evicted: list[str] = []
    reserved: set[int] = set()
    # The most urgent first: GPUs that it takes are reserved, so that no other task evicts for the same ones.
    for urgent in sorted(state.waiting, key=lambda task: -task.priority):
        if not any(task.request.priority < urgent.priority for task in state.active):
            break
        found = _victims(urgent, state, reserved)
        if found is None:
            continue
        victims, gpus = found
        reserved |= gpus
        for victim in victims:
            evicted.append(victim.request.task_id)
            state = stopped(state, victim, saved_share=victim.saved_share)
    return state, tuple(evicted)


def _victims(
    urgent: TaskRequest, state: ClusterState, reserved: set[int]
) -> tuple[Sequence[ActiveTask], set[int]] | None:
    """Return the fewest less urgent tasks whose GPUs, with free ones, hold ``urgent``, and the GPUs it would take."""
    need = min(option.num_gpus for option in urgent.options)
    free = set(state.free_gpu_ids) - reserved
    pools = [set(state.cluster.gpu_ids)] if urgent.may_span_nodes else [set(n) for n in state.cluster.nodes.values()]
    yielding = sorted(
        (tasks for tasks in _by_executor(state) if all(task.request.priority < urgent.priority for task in tasks)),
        key=lambda tasks: (tasks[0].request.priority, -tasks[0].started_seconds, tasks[0].request.task_id),
    )
    # Fewest tasks over all nodes: each one that gives way loads its model again later.
    best: tuple[Sequence[ActiveTask], set[int]] | None = None
    for pool in pools:
        chosen: list[tuple[ActiveTask, ...]] = []
        gpus = free & pool
        for tasks in yielding:
            if len(gpus) >= need:
                break
            if set(tasks[0].gpu_ids) & pool:
                chosen.append(tasks)
                gpus |= set(tasks[0].gpu_ids) & pool
        # Tasks taken early may not be needed once a large one has been taken; the most urgent of them stay.
        for tasks in reversed(list(chosen)):
            if len(gpus - set(tasks[0].gpu_ids)) >= need:
                chosen.remove(tasks)
                gpus -= set(tasks[0].gpu_ids)
        victims = [task for tasks in chosen for task in tasks]
        if len(gpus) >= need and (best is None or len(victims) < len(best[0])):
            best = (victims, set(sorted(gpus)[:need]))
    return best


def _by_executor(state: ClusterState) -> list[tuple[ActiveTask, ...]]:
    """Return the active tasks, those that share an executor together: GPUs are free once all of them have gone."""
    found: dict[tuple[int, ...], tuple[ActiveTask, ...]] = {}
    for task in state.active:
        found[task.gpu_ids] = (*found.get(task.gpu_ids, ()), task)
    return list(found.values())
