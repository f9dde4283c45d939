"""What a simulation of a cluster is given, assumes and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cohort.scheduling.placement.placement_settings import PlacementSettings
from cohort.scheduling.placement.records import SolverStatus, TaskRequest
from cohort.scheduling.placement.task_order import ListPolicy

__all__ = ["RunSegment", "SimulatedTask", "SimulationReport", "SimulationSettings"]


def _require_shares(shares: Sequence[float]) -> None:
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"exit_shares are shares of the planned steps, above 0 and at most 1, but these are {shares}")


@dataclass(frozen=True, kw_only=True)
class SimulatedTask:
    """A task and how many trials it has; their exits make its length. Its arrival is the request's.

    Attributes:
        exit_shares: Of its trials; those of the settings where it has none of its own.
    """

    request: TaskRequest
    num_trials: int = 1
    exit_shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _require_shares(self.exit_shares)


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """What a simulation assumes.

    Attributes:
        exit_shares: Shares of their planned steps that recorded trials did, in (0, 1]; (1,) has no early exits.
        reestimate_share: Share of its worst case after which a task's end is known (the end of its warm-up); None when
            it is only known when it happens.
        failures_per_gpu_hour: Expected worker deaths for each GPU and hour that a task runs.
        checkpoint_seconds: Time between checkpoints; work since the last one is done again.
        placement: Limits of the solver; small by default, since a simulation plans at every event.
        policy: Plan by a list policy instead of the solver.
        share_gpu: Let tasks join the executor of others where that is predicted to be faster.
        seed: Of all draws.
    """

    exit_shares: tuple[float, ...] = (1.0,)
    reestimate_share: float | None = None
    failures_per_gpu_hour: float = 0.0
    checkpoint_seconds: float = 600.0
    placement: PlacementSettings = field(
        default_factory=lambda: PlacementSettings(work_limit=0.2, most_solver_tasks=16)
    )
    policy: ListPolicy | None = None
    share_gpu: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.exit_shares:
            raise ValueError("exit_shares need at least one share; (1,) has no early exits")
        _require_shares(self.exit_shares)
        if self.reestimate_share is not None and not 0 < self.reestimate_share < 1:
            raise ValueError(f"reestimate_share must be between 0 and 1, but it is {self.reestimate_share}")
        if self.failures_per_gpu_hour < 0 or self.checkpoint_seconds <= 0:
            raise ValueError("failures_per_gpu_hour must be at least 0 and checkpoint_seconds above 0")


@dataclass(frozen=True, kw_only=True)
class RunSegment:
    """A stretch of time in which a task held GPUs; ``has_ended`` tells the last one."""

    task_id: str
    gpu_ids: tuple[int, ...]
    start_seconds: float
    end_seconds: float
    has_ended: bool


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """What happened.

    Attributes:
        segments: Who held which GPUs when, by start.
        planned_makespan_seconds: What the first plan with all tasks of the start expected.
        makespan_seconds: End of the last task.
        gpu_seconds_held: By tasks, work that was lost included; once where several share a GPU.
        gpu_seconds_available: From the start to the last end, GPUs that were there.
        num_replans: Plans made.
        statuses: Plans by solver status.
        num_failures: Workers that died, those of lost GPUs included.
        num_evictions: Tasks that gave way to more urgent ones.
        unfinished: Tasks that never found GPUs again.
        num_joined: Tasks that joined the executor of others.
    """

    segments: tuple[RunSegment, ...]
    planned_makespan_seconds: float
    makespan_seconds: float
    gpu_seconds_held: float
    gpu_seconds_available: float
    num_replans: int
    statuses: tuple[tuple[SolverStatus, int], ...]
    num_failures: int
    num_evictions: int
    unfinished: tuple[str, ...]
    num_joined: int = 0

    @property
    def utilisation(self) -> float:
        """Share of the GPUs' time that tasks held them."""
        return self.gpu_seconds_held / self.gpu_seconds_available if self.gpu_seconds_available else 0.0
