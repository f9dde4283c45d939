"""How a queue is worked off."""

from __future__ import annotations

from dataclasses import dataclass, field

from cohort.engine.tune import RunOptions
from cohort.scheduling.placement.baselines import ListPolicy
from cohort.task_queue.worker_slots import Limits

__all__ = ["HeadSettings"]


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """How a queue is worked off; none of it changes an adapter.

    Attributes:
        policy: Place tasks by a list policy instead of the planner.
        keeps_open: Wait for further tasks when all have ended.
        options: How each run is carried out.
        poll_seconds: Longest wait of a turn.
        look_seconds: Time between looks at the queue on the disk.
        reestimate_share: A task whose end moves by more than this share of its time has the rest planned anew...
        reestimate_seconds: ... but no more often than this.
        limits: When workers and tasks count as lost.
    """

    policy: ListPolicy | None = None
    keeps_open: bool = False
    options: RunOptions = field(default_factory=RunOptions)
    poll_seconds: float = 0.2
    look_seconds: float = 0.5
    reestimate_share: float = 0.1
    reestimate_seconds: float = 2.0
    limits: Limits = field(default_factory=Limits)
