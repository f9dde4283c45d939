"""Recorded grids as files: reading them, and replaying early exit on them exactly.

The old file of stories260K has fewer evaluations and no seed; all that reads curves takes either.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.tuning import (
    EarlyExitSettings,
    EvaluationSettings,
    RecordedCurve,
    ReplayReport,
    plan_candidate,
    replay_curves,
)

__all__ = ["Grid", "RecordedTrial", "read_grid", "read_grids"]


@dataclass(frozen=True, kw_only=True)
class RecordedTrial:
    """One trial trained to its end; ``points`` are (step, smoothed train loss, validation loss)."""

    trial_id: int
    learning_rate: float
    r: int
    batch_size: int
    planned_steps: int
    points: tuple[tuple[int, float, float], ...]

    @property
    def best(self) -> float:
        """Lowest validation loss: what the trial's best checkpoint has."""
        return min((loss for _, _, loss in self.points if math.isfinite(loss)), default=math.inf)

    @property
    def final(self) -> float:
        """Validation loss after the last step; infinity where it is not finite."""
        loss = self.points[-1][2]
        return loss if math.isfinite(loss) else math.inf

    def loss_at(self, share: float) -> float:
        """Return the validation loss of the first evaluation at or past a share of the planned steps."""
        for step, _, loss in self.points:
            if step >= share * self.planned_steps - 1e-9:
                return loss if math.isfinite(loss) else math.inf
        raise ValueError(f"trial {self.trial_id} has no evaluation at or past {share}")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All trials of one set and seed, trained to their end."""

    name: str
    seed: int
    source: Mapping[str, Any]
    trials: tuple[RecordedTrial, ...]

    @property
    def best(self) -> float:
        """Lowest validation loss of the full grid."""
        return min(trial.best for trial in self.trials)

    @property
    def spread(self) -> tuple[float, float, float]:
        """Best, median and worst of the trials' best losses."""
        bests = sorted(trial.best for trial in self.trials)
        return bests[0], bests[len(bests) // 2], bests[-1]

    def replay(
        self, settings: EarlyExitSettings, *, evaluation: EvaluationSettings | None = None, num_slots: int | None = None
    ) -> ReplayReport:
        """Return what early exit would have made of this grid.

        Raises:
            ValueError: an evaluation that ``settings`` need was not recorded.
        """
        evaluation = evaluation or EvaluationSettings()
        curves = [
            RecordedCurve.from_points(
                plan_candidate(
                    trial.trial_id,
                    planned_steps=trial.planned_steps,
                    warmup_fraction=settings.warmup_fraction,
                    settings=evaluation,
                ),
                trial.points,
                batch_size=trial.batch_size,
            )
            for trial in self.trials
        ]
        return replay_curves(curves, settings, num_slots=num_slots)


def read_grid(path: Path) -> Grid:
    """Return the grid of one file."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    trials = tuple(
        RecordedTrial(
            trial_id=trial["trial_id"],
            learning_rate=trial["learning_rate"],
            r=trial["r"],
            batch_size=trial["batch_size"],
            planned_steps=trial["planned_steps"],
            points=tuple((int(step), train, validation) for step, train, validation in trial["points"]),
        )
        for trial in content["trials"]
    )
    source = {key: value for key, value in content.items() if key != "trials"}
    name = source.get("set", path.name.split("_")[0])
    return Grid(name=f"{name} ({source['model']})", seed=int(source.get("seed", 0)), source=source, trials=trials)


def read_grids(paths: Sequence[Path]) -> list[Grid]:
    """Return the grids of several files, by set and seed."""
    return sorted((read_grid(path) for path in paths), key=lambda grid: (grid.name, grid.seed))
