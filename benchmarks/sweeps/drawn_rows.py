"""Rows for recorded grids, whose records are means: real ones where they were kept, else drawn by a measured noise.

A drawn row of a trial is its recorded mean, plus a part that grows with the trial's distance from the grid's best (one
draw of the row for all), plus a part of its own; ``row_noise.py`` measured both on the same set with a smaller model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.sweeps.curve_files import COARSE_STEPS, Grid, RecordedTrial
from benchmarks.sweeps.row_noise import OUT, recorded_noise
from cohort.tuning import (
    Candidate,
    EarlyExitSettings,
    EvaluationSettings,
    RecordedCurve,
    ReplayReport,
    plan_candidate,
    replay_curves,
)

__all__ = ["DrawnSweep", "replay_with_rows"]

# evaluations up to here use the noise of the first comparison, later ones that of the second
_EARLY = 0.1


@dataclass(frozen=True, kw_only=True)
class DrawnSweep:
    """What a replay with rows led to.

    Attributes:
        ratio: The best recorded loss that a trial had before it was stopped, over the best of all these trials.
    """

    saved_percent: float
    ratio: float
    report: ReplayReport


def replay_with_rows(
    grid: Grid, trials: Sequence[RecordedTrial], settings: EarlyExitSettings, *, num_rows: int, seed: int
) -> DrawnSweep:
    """Let early exit decide about some trials of a grid by ``num_rows`` validation rows.

    Every trial is replayed in ``COARSE_STEPS`` steps, evaluation by evaluation; the floor in steps is scaled to them.
    """
    fewest = min(trial.planned_steps for trial in trials)
    scaled = max(1, math.ceil(settings.common.compare_after_steps * COARSE_STEPS / fewest))
    settings = settings.with_keys(compare_after_steps=scaled if settings.common.compare_after_steps > 1 else 1)
    rng = np.random.default_rng([seed, grid.seed, num_rows])
    by_set = recorded_noise(json.loads(Path(OUT).read_text(encoding="utf-8")))
    noise = by_set[grid.name.split(" ")[0]]
    shared_N = rng.standard_normal(num_rows)
    tokens = grid.source.get("row_tokens")
    chosen = None if tokens is None else rng.choice(len(tokens), size=min(num_rows, len(tokens)), replace=False)
    curves = []
    for trial in trials:
        steps = [_evaluated(trial, num_steps, settings) for num_steps in (trial.planned_steps, COARSE_STEPS)]
        coarse_of = dict(zip(*(candidate.evaluation_steps for candidate in steps), strict=True))
        points = [(coarse_of[step], ema, loss) for step, ema, loss in trial.points if step in coarse_of]
        losses, rows = {}, {}
        for step, _, loss in trial.points:
            if step not in coarse_of or not math.isfinite(loss):
                continue
            if chosen is not None and step in trial.row_losses:
                own = np.array(trial.row_losses[step])[chosen]
                losses[coarse_of[step]] = float(own.sum() / np.array(tokens)[chosen].sum())
            else:
                slope, floor = noise[0] if step <= _EARLY * trial.planned_steps else noise[1]
                own = loss + slope * (loss - grid.best) * shared_N
                own = own + floor * loss / math.sqrt(2) * rng.standard_normal(num_rows)
                losses[coarse_of[step]] = float(own.mean())
            rows[coarse_of[step]] = {"loss": tuple(own.tolist())}
        curve = RecordedCurve.from_points(steps[1], points, row_values=rows)
        curves.append(replace(curve, validation_losses={**curve.validation_losses, **losses}))
    report = replay_curves(curves, settings)
    shares = {trial_id: done / COARSE_STEPS for trial_id, done in report.steps.items()}
    return DrawnSweep(
        saved_percent=100 * report.saved_share,
        ratio=_best(trials, shares) / min(trial.best for trial in trials),
        report=report,
    )


def _evaluated(trial: RecordedTrial, num_steps: int, settings: EarlyExitSettings) -> Candidate:
    return plan_candidate(
        trial.trial_id,
        planned_steps=num_steps,
        warmup_fraction=settings.warmup_fraction,
        settings=EvaluationSettings(),
    )


def _best(trials: Sequence[RecordedTrial], shares: Mapping[int, float]) -> float:
    """Return the lowest recorded loss up to the share of its steps after which each trial was stopped."""
    return min(
        loss
        for trial in trials
        for step, _, loss in trial.points
        # a share that was rounded up to a step
        if step < shares[trial.trial_id] * trial.planned_steps + 1 and math.isfinite(loss)
    )
