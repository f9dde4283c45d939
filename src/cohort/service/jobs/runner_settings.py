"""How a node runs jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from cohort.service.jobs.row_checks import CheckLimits
from cohort.store.retention import Retention

__all__ = ["RunnerSettings"]


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """How a node claims, watches and gives back jobs.

    Attributes:
        lease_seconds: After so long without a sign of life another node takes a job over.
        turn_seconds: Time between two looks at all jobs.
        most_jobs: Most jobs that this node has in its queue: those of one base share passes.
        min_free_bytes: With less room on the disk nothing is accepted, and jobs pause before they must write.
        grace_seconds: Jobs train on for so long while the database is away.
        check: What reading one uploaded file may take.
        retention: How long what has ended is kept.
    """

    lease_seconds: float = 30.0
    turn_seconds: float = 0.5
    most_jobs: int = 16
    min_free_bytes: int = 256 << 20
    grace_seconds: float = 300.0
    check: CheckLimits = field(default_factory=CheckLimits)
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        for name in ("lease_seconds", "turn_seconds", "most_jobs", "grace_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
