"""Tasks, GPUs and plans of inter-task placement, as immutable records. Times are seconds from now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from cohort.core.errors import InputError, Problem
from cohort.scheduling.cost.shared_time import SharedWork

__all__ = [
    "Cluster",
    "Placement",
    "PlacementPlan",
    "RunningTask",
    "SolverStatus",
    "TaskOption",
    "TaskRequest",
    "check_placeable",
    "find_unplaceable",
    "level_makespans",
]


@dataclass(frozen=True, kw_only=True)
class TaskOption:
    """One way to run a task: on ``num_gpus`` it takes ``seconds`` at worst (no early exit, evaluations included)."""

    num_gpus: int
    seconds: float

    def __post_init__(self) -> None:
        if self.num_gpus < 1 or not 0 < self.seconds < float("inf"):
            raise ValueError(f"an option needs at least one GPU and a positive time, but this is {self}")


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """A task that waits for GPUs.

    Attributes:
        options: Degrees of parallelism it may run at; the planner chooses one.
        priority: Larger is more urgent: no plan delays the end of more urgent tasks for less urgent ones.
        may_span_nodes: Its GPUs may be on several nodes.
        work: What it would do in an executor that it shares with other tasks; None: it shares with none.
        tenant: Whose it is; where any task names one, tasks get GPUs in the order of fair shares.
        weight: Of its tenant.
    """

    task_id: str
    options: tuple[TaskOption, ...]
    arrival_seconds: float = 0.0
    priority: int = 0
    may_span_nodes: bool = False
    work: SharedWork | None = None
    tenant: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        # An option without GPUs or two of one degree would be a task that the model cannot choose for.
        degrees = [option.num_gpus for option in self.options]
        if not degrees or len(set(degrees)) != len(degrees) or self.arrival_seconds < 0:
            raise ValueError(f"a task has options of different num_gpus and arrives now or later, but this is {self}")

    def seconds_on(self, num_gpus: int) -> float:
        """Return the seconds on ``num_gpus``, which must be one of the options."""
        return next(option.seconds for option in self.options if option.num_gpus == num_gpus)

    def remaining(self, share: float) -> TaskRequest:
        """Return the task with ``share`` of its work left; it goes on by itself."""
        options = tuple(replace(option, seconds=option.seconds * share) for option in self.options)
        # which trials the rest is in is not known here; a task that was stopped may also be what troubled the others
        return replace(self, options=options, work=None)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The GPUs there are: ids by node name."""

    nodes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        # Ids are global: a GPU listed on two nodes could be given away twice.
        gpus = [gpu for node in self.nodes.values() for gpu in node]
        if len(set(gpus)) != len(gpus):
            raise ValueError(f"a GPU belongs to one node, but the nodes are {dict(self.nodes)}")

    @classmethod
    def of_one_node(cls, num_gpus: int) -> Cluster:
        """Return one machine with GPUs 0, 1, ..."""
        return cls(nodes={"local": tuple(range(num_gpus))})

    @cached_property
    def gpu_ids(self) -> tuple[int, ...]:
        return tuple(gpu for node in self.nodes.values() for gpu in node)

    @cached_property
    def _largest_node(self) -> int:
        return max(map(len, self.nodes.values()), default=0)

    @property
    def num_gpus(self) -> int:
        return len(self.gpu_ids)

    def most_gpus_for(self, task: TaskRequest) -> int:
        """Return the largest number of GPUs ``task`` could be given."""
        return self.num_gpus if task.may_span_nodes else self._largest_node

    def without(self, gpu_ids: Sequence[int]) -> Cluster:
        lost = set(gpu_ids)
        # Nodes without GPUs go: they would be empty pools that every policy has to skip.
        left = {name: tuple(gpu for gpu in node if gpu not in lost) for name, node in self.nodes.items()}
        return Cluster(nodes={name: node for name, node in left.items() if node})

    def with_gpus(self, gpu_ids: Sequence[int], *, node: str) -> Cluster:
        """Return the cluster that ``gpu_ids`` of ``node`` have joined."""
        return Cluster(nodes={**self.nodes, node: (*self.nodes.get(node, ()), *gpu_ids)})


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and when a task runs."""

    task_id: str
    gpu_ids: tuple[int, ...]
    start_seconds: float
    end_seconds: float
    priority: int = 0

    @property
    def num_gpus(self) -> int:
        return len(self.gpu_ids)


@dataclass(frozen=True, kw_only=True)
class RunningTask:
    """A task that holds GPUs now and keeps them for ``remaining_seconds`` more."""

    task_id: str
    gpu_ids: tuple[int, ...]
    remaining_seconds: float
    priority: int = 0

    def placement(self) -> Placement:
        """Return the task as every plan contains it: where it is, from now to its end."""
        end = self.remaining_seconds
        return Placement(
            task_id=self.task_id, gpu_ids=self.gpu_ids, start_seconds=0.0, end_seconds=end, priority=self.priority
        )


class SolverStatus(Enum):
    """How good a plan is known to be, in the planner's own coarse time units."""

    OPTIMAL = "optimal"
    """No plan is shorter."""
    FEASIBLE = "feasible"
    """The best found within the limit; the gap says how much shorter another could be at most."""
    HEURISTIC = "heuristic"
    """A list policy's plan; no solver has looked at it."""


@dataclass(frozen=True, kw_only=True)
class PlacementPlan:
    """When and where every task runs.

    Attributes:
        placements: Running tasks and waiting ones, by start.
        status: What the solver proved, in units of ``time_unit_seconds``.
        solver_gap: Share by which the coarse makespan may exceed the best; 0 when proven, NaN without a solver.
        lower_bound_seconds: No plan for the same tasks ends before (the checker's bound, exact seconds).
        time_unit_seconds: The solver's unit; 0 for a list policy.
        policy: What made the plan: ``solver`` or the name of the list policy that was not beaten.
    """

    placements: tuple[Placement, ...]
    status: SolverStatus
    solver_gap: float
    lower_bound_seconds: float
    time_unit_seconds: float
    policy: str

    @property
    def makespan_seconds(self) -> float:
        return max((placement.end_seconds for placement in self.placements), default=0.0)

    @property
    def gap(self) -> float:
        """Makespan over lower bound, less one: the plan is at most this much longer than the best."""
        return self.makespan_seconds / self.lower_bound_seconds - 1 if self.lower_bound_seconds > 0 else 0.0


def level_makespans(placements: Sequence[Placement]) -> tuple[float, ...]:
    """Return the end of all tasks at or above each priority, the most urgent first: what plans are compared by."""
    # As a tuple, so that comparing plans puts the end of the most urgent tasks before all others.
    levels = sorted({placement.priority for placement in placements}, reverse=True)
    return tuple(max(other.end_seconds for other in placements if other.priority >= level) for level in levels)


def find_unplaceable(tasks: Sequence[TaskRequest], cluster: Cluster) -> tuple[Problem, ...]:
    """Return a problem for each task that fits no GPUs there are, and for a cluster without any."""
    if tasks and not cluster.num_gpus:
        hint = "Give the number of GPUs, at least 1."
        return (Problem(where="gpus", found="0", allowed="1 or more", hint=hint),)
    # Judged by its smallest option: wider ones are left out of the plan as long as one fits.
    return tuple(
        Problem(
            where=f"task {task.task_id}: num_gpus",
            found=f"{min(option.num_gpus for option in task.options)}",
            allowed=f"at most {cluster.most_gpus_for(task)}, the GPUs it can have together here",
            hint="Choose a smaller base model or a frozen-weight format that fits fewer GPUs, or add GPUs.",
        )
        for task in tasks
        if min(option.num_gpus for option in task.options) > cluster.most_gpus_for(task)
    )


def check_placeable(tasks: Sequence[TaskRequest], cluster: Cluster) -> None:
    """Refuse tasks that could never run.

    Raises:
        InputError: with all of :func:`find_unplaceable`.
    """
    problems = find_unplaceable(tasks, cluster)
    if problems:
        raise InputError(problems)
