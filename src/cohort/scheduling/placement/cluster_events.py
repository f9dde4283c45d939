"""The state of a cluster and the events that change it, as immutable records, in seconds of the run's own clock."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.placement.records import Cluster, TaskRequest

__all__ = [
    "ActiveTask",
    "ClusterEvent",
    "ClusterState",
    "GpusGained",
    "GpusLost",
    "RoomFound",
    "TaskArrived",
    "TaskEnded",
    "TaskInterrupted",
    "TaskReestimated",
    "TaskWithdrawn",
]


@dataclass(frozen=True, kw_only=True)
class ActiveTask:
    """A task that holds GPUs; several that share an executor hold the same.

    Attributes:
        request: The task with the work it had left when it started.
        gpu_ids: What it holds.
        started_seconds: When it started.
        saved_share: Share of ``request``'s work in its last checkpoint, in [0, 1).
        expected_seconds: How long it is expected to run from its start, early exits so far considered.
    """

    request: TaskRequest
    gpu_ids: tuple[int, ...]
    started_seconds: float
    expected_seconds: float
    saved_share: float = 0.0

    @property
    def ends_seconds(self) -> float:
        return self.started_seconds + self.expected_seconds


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """Who runs and who waits.

    Attributes:
        now_seconds: Time of the last event.
        cluster: GPUs that work.
        active: Tasks that hold GPUs.
        waiting: Tasks that could start now.
        stranded: Tasks that wait for GPUs to come back: none that are left could hold them.
    """

    cluster: Cluster
    now_seconds: float = 0.0
    active: tuple[ActiveTask, ...] = ()
    waiting: tuple[TaskRequest, ...] = ()
    stranded: tuple[TaskRequest, ...] = ()

    @property
    def free_gpu_ids(self) -> tuple[int, ...]:
        # In the cluster's order, which policies use to break ties.
        held = {gpu for task in self.active for gpu in task.gpu_ids}
        return tuple(gpu for gpu in self.cluster.gpu_ids if gpu not in held)


@dataclass(frozen=True, kw_only=True)
class TaskArrived:
    """A user submitted a task."""

    at_seconds: float
    request: TaskRequest


@dataclass(frozen=True, kw_only=True)
class TaskEnded:
    """A task is done, most often earlier than its worst case."""

    at_seconds: float
    task_id: str


@dataclass(frozen=True, kw_only=True)
class TaskWithdrawn:
    """A user removed a task from the queue, running or not."""

    at_seconds: float
    task_id: str


@dataclass(frozen=True, kw_only=True)
class TaskInterrupted:
    """A task lost its worker and waits again; its last checkpoint holds ``saved_share`` of the work it started with."""

    at_seconds: float
    task_id: str
    saved_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TaskReestimated:
    """Trials of a running task exited early, or its speed was measured: it will end at another time than expected."""

    at_seconds: float
    task_id: str
    remaining_seconds: float


@dataclass(frozen=True, kw_only=True)
class RoomFound:
    """Tasks that run in one executor leave room in its passes, in which another task could train.

    Attributes:
        works: By task, in the order in which they came there, what is left of it.
    """

    at_seconds: float
    works: tuple[tuple[str, SharedWork], ...]


@dataclass(frozen=True, kw_only=True)
class GpusLost:
    """GPUs are gone, with their tasks; ``saved_shares`` gives the checkpointed share by task (0 where left out)."""

    at_seconds: float
    gpu_ids: tuple[int, ...]
    saved_shares: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GpusGained:
    """GPUs joined, on a new node or a known one."""

    at_seconds: float
    node: str
    gpu_ids: tuple[int, ...]


ClusterEvent = (
    TaskArrived | TaskEnded | TaskWithdrawn | TaskInterrupted | TaskReestimated | RoomFound | GpusLost | GpusGained
)
