"""Limits of a plan's search."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PlacementSettings"]


@dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """Limits of a plan.

    Attributes:
        num_units: Time units the makespan is divided into.
        work_limit: The solver's deterministic work units (about seconds) for all priority levels together; plans do
            not depend on the machine's speed unless ``time_limit_seconds`` cuts in.
        time_limit_seconds: Wall clock after which the best plan so far is taken.
        most_solver_tasks: With more waiting tasks the best list policy is taken, and the solver only fills what that
            leaves idle now: such instances are within a few percent of their lower bound, and the plan's gap says so.
        horizon_seconds: How far ahead the solver looks then.
        num_workers: Solver threads; they share work deterministically.
    """

    num_units: int = 200
    work_limit: float = 4.0
    time_limit_seconds: float = 30.0
    most_solver_tasks: int = 80
    horizon_seconds: float = 3600.0
    num_workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.num_units, self.num_workers) < 1 or min(self.work_limit, self.time_limit_seconds) <= 0:
            raise ValueError(f"units, workers and limits must be above 0, but these are {self}")
