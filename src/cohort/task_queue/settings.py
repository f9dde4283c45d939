"""How the dispatcher works a queue off, and when it takes workers and tasks for lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from cohort.engine.tune import RunOptions
from cohort.scheduling.placement.task_order import ListPolicy

__all__ = ["DispatcherSettings", "Limits"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When the dispatcher considers a worker or a task lost.

    Attributes:
        silent_seconds: Without a heartbeat: the process is stopped or hangs as a whole.
        still_seconds: Without a step, an evaluation or a new phase of the task: a step hangs.
        start_seconds: From a worker's start to its first message.
        stop_seconds: From the request to stop a task to the worker's answer.
        deaths_in_a_row: Workers of one slot that died before they could work, after which the slot is given up.
        attempts: Faults of a task in a row without progress in between, after which the task has failed.
    """

    silent_seconds: float = 60.0
    still_seconds: float = 900.0
    start_seconds: float = 300.0
    stop_seconds: float = 300.0
    deaths_in_a_row: int = 3
    attempts: int = 3

    def __post_init__(self) -> None:
        seconds = (self.silent_seconds, self.still_seconds, self.start_seconds, self.stop_seconds)
        if min(seconds) <= 0 or min(self.deaths_in_a_row, self.attempts) < 1:
            raise ValueError(f"limits must be above 0, but these are {self}")


@dataclass(frozen=True, kw_only=True)
class DispatcherSettings:
    """How a queue is worked off; none of it changes an adapter.

    Attributes:
        policy: Place tasks by a list policy instead of the planner.
        keeps_open: Wait for further tasks when all have ended.
        options: How each run is carried out.
        poll_seconds: Longest wait of a turn.
        look_seconds: Time between looks at the queue on the disk.
        reestimate_share: The rest is planned again when a task's end moves by more than this share of its time ...
        reestimate_seconds: ... but no more often than this.
        room_seconds: Time between two looks for a task that could join others.
        limits: When workers and tasks count as lost.
    """

    policy: ListPolicy | None = None
    keeps_open: bool = False
    options: RunOptions = field(default_factory=RunOptions)
    poll_seconds: float = 0.2
    look_seconds: float = 0.5
    # a plan may take the solver two seconds, which smaller moves are not worth
    reestimate_share: float = 0.1
    reestimate_seconds: float = 2.0
    # a prediction reads a run's record and takes tens of milliseconds
    room_seconds: float = 5.0
    limits: Limits = field(default_factory=Limits)
