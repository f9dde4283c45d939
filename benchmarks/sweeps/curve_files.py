"""Recorded grids as files: reading them, and replaying early exit on them exactly.

The old file of stories260K has fewer evaluations and no seed; all that reads curves takes either.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.tuning import (
    Candidate,
    EarlyExitSettings,
    EvaluationSettings,
    RecordedCurve,
    ReplayReport,
    plan_candidate,
    replay_curves,
)
from cohort.tuning.evaluation_times import EvaluationTimes
from cohort.tuning.share_counts import ceil_share

__all__ = ["Grid", "RecordedTrial", "read_grid", "read_grids"]

# whole steps at every share that is evaluated at
COARSE_STEPS = 200
# of the grids that were recorded first; others say theirs in their name
USUAL_EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class RecordedTrial:
    """One trial trained to its end; ``points`` are (step, smoothed train loss, validation loss).

    ``row_losses`` are, by step, the sums over the tokens of each validation row, where they were kept.
    """

    trial_id: int
    learning_rate: float
    r: int
    batch_size: int
    planned_steps: int
    points: tuple[tuple[int, float, float], ...]
    row_losses: Mapping[int, Sequence[float]] = field(default_factory=dict)

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
        """Return the validation loss after a share of the planned steps, rounded up to a step.

        Raises:
            ValueError: there was no evaluation.
        """
        wanted = ceil_share(share, self.planned_steps)
        for step, _, loss in self.points:
            if step == wanted:
                return loss if math.isfinite(loss) else math.inf
        raise ValueError(f"trial {self.trial_id} was not evaluated after step {wanted}")


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
        self, settings: EarlyExitSettings, *, coarse: bool = False, times: EvaluationTimes | None = None
    ) -> ReplayReport:
        """Return what early exit would have made of this grid, evaluated as by default.

        Args:
            settings: Early exit.
            coarse: Replay every trial in ``COARSE_STEPS`` steps, evaluation by evaluation: many times faster, and the
                same decisions by all rules that look at one trial or wait for all. Rules that depend on who comes
                first (ASHA, median) then see trials of all batch sizes come together.
            times: When trials are evaluated, if not as by default.

        Raises:
            ValueError: an evaluation that ``settings`` need was not recorded.
        """
        curves = [_curve(trial, settings, coarse=coarse, times=times) for trial in self.trials]
        return replay_curves(curves, settings)

    def curve(self, trial: RecordedTrial, settings: EarlyExitSettings) -> RecordedCurve:
        """Return one trial's curve in ``COARSE_STEPS`` steps, with the evaluations that ``settings`` need."""
        return _curve(trial, settings, coarse=True)


def _curve(
    trial: RecordedTrial, settings: EarlyExitSettings, *, coarse: bool, times: EvaluationTimes | None = None
) -> RecordedCurve:
    def planned(steps: int) -> Candidate:
        return plan_candidate(
            trial.trial_id,
            planned_steps=steps,
            warmup_fraction=settings.warmup_fraction,
            settings=EvaluationSettings(),
            times=times,
        )

    candidate = planned(trial.planned_steps)
    if not coarse:
        return RecordedCurve.from_points(candidate, trial.points, batch_size=trial.batch_size)
    short = planned(COARSE_STEPS)
    by_step = {step: (ema, loss) for step, ema, loss in trial.points}
    if missing := set(candidate.evaluation_steps) - set(by_step):
        raise ValueError(f"trial {trial.trial_id} was not evaluated after steps {sorted(missing)}")
    # raises where a trial is so short that evaluations fall together
    pairs = zip(short.evaluation_steps, candidate.evaluation_steps, strict=True)
    return RecordedCurve.from_points(short, [(step, *by_step[real]) for step, real in pairs])


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
            row_losses={int(step): losses for step, losses in trial.get("row_losses", {}).items()},
        )
        for trial in content["trials"]
    )
    source = {key: value for key, value in content.items() if key != "trials"}
    name, epochs = source.get("set", path.name.split("_")[0]), source.get("epochs", USUAL_EPOCHS)
    length = "" if epochs == USUAL_EPOCHS else f", {epochs} epoch{'' if epochs == 1 else 's'}"
    # older files name no schedule: all were recorded at constant rates
    schedule = source.get("schedule", "constant")
    shape = "" if schedule == "constant" else f", {schedule} rate"
    label = f"{name} ({source['model']}{length}{shape})"
    return Grid(name=label, seed=int(source.get("seed", 0)), source=source, trials=trials)


def read_grids(paths: Sequence[Path]) -> list[Grid]:
    """Return the grids of several files, by set and seed."""
    return sorted((read_grid(path) for path in paths), key=lambda grid: (grid.name, grid.seed))
