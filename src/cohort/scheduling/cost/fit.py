"""Fits a step's coefficients to measured steps: non-negative least squares of relative errors.

With a prior (the analytic cost) a single measured step already corrects its scale, and every further one its shape;
without one a dozen mixed packs are needed. Steps that the host launches kernel by kernel, from a known number of tokens
on, are either as long as their work or as long as their launches: both are fitted, each on the steps it explains.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.scheduling.cost.model import (
    COEFFICIENTS,
    AdapterWork,
    Knee,
    LaunchFloor,
    LaunchRegime,
    StepCost,
    StepSample,
)

__all__ = ["CostFit", "LaunchRegime", "errors_percent", "fit_step_cost"]

# weight of "each coefficient is the prior's" against one measured step; small, so that a few dozen steps outweigh it
PRIOR_WEIGHT = 0.003
# fits of two regimes settle in a few rounds of telling which step is whose
MOST_ROUNDS = 12


@dataclass(frozen=True, kw_only=True)
class CostFit:
    """Fitted coefficients and their errors in percent; held-out ones on packs the fit never saw, NaN without such."""

    cost: StepCost
    fit_median_error_percent: float
    held_out_median_error_percent: float
    held_out_worst_error_percent: float
    num_fitted: int
    num_held_out: int


def errors_percent(cost: StepCost, samples: Sequence[StepSample]) -> list[float]:
    """Return how far ``cost`` is from each sample, in percent of it."""
    return [100 * abs(cost.step_seconds(sample.pack) / sample.seconds - 1) for sample in samples]


def fit_step_cost(
    samples: Sequence[StepSample],
    *,
    held_out: Sequence[StepSample] | None = None,
    knees: Sequence[float] = (),
    prior: StepCost | None = None,
    launched: LaunchRegime | None = None,
) -> CostFit:
    """Fit a step's coefficients.

    Args:
        samples: Measured steps of mixed packs.
        held_out: Steps to judge the fit by; by default every fourth of ``samples`` is left out of the fit, none with
            a prior and fewer than eight.
        knees: Token counts where the price of a token may rise; by default the prior's, else the quartiles of the
            samples' tokens.
        prior: What to stay near where the samples say little.
        launched: When steps are launched by the host; None: never, and the result is convex.

    Raises:
        ValueError: too few steps to fit or to judge by, or a step without seconds or trials.
    """
    least = 1 if prior else 3
    if held_out is None:
        # With a prior and few steps every one is worth more in the fit than as a judge of it.
        splits = prior is None or len(samples) >= 8
        held_out = samples[3::4] if splits else ()
        samples = [sample for index, sample in enumerate(samples) if index % 4 != 3] if splits else samples
    if len(samples) < least or (prior is None and not held_out):
        raise ValueError(f"a fit needs {least} steps and 1 to judge it by, but has {len(samples)} and {len(held_out)}")
    for sample in (*samples, *held_out):
        if not sample.pack or not sample.seconds > 0:
            raise ValueError(f"every measured step has trials and seconds above 0, but one is {sample}")
    places = _places(samples, knees, prior)
    cost = _fit_work(samples, places, prior)
    if launched is not None:
        cost = _fit_regimes(samples, places, prior, launched, cost)
    fitted, judged = errors_percent(cost, samples), errors_percent(cost, held_out)
    return CostFit(
        cost=cost,
        fit_median_error_percent=statistics.median(fitted),
        held_out_median_error_percent=statistics.median(judged) if judged else math.nan,
        held_out_worst_error_percent=max(judged, default=math.nan),
        num_fitted=len(samples),
        num_held_out=len(held_out),
    )


def _places(samples: Sequence[StepSample], knees: Sequence[float], prior: StepCost | None) -> list[float]:
    if knees:
        return sorted(set(knees))
    if prior is not None:
        return sorted({knee.at_tokens for knee in prior.knees})
    # Without a prior the knees are unknown; at the quartiles each piece has steps to be fitted on.
    quartiles = np.quantile([sample.num_tokens for sample in samples], [0.25, 0.5, 0.75])
    return sorted({float(value) for value in quartiles})


def _fit_work(samples: Sequence[StepSample], places: Sequence[float], prior: StepCost | None) -> StepCost:
    seconds = np.array([sample.seconds for sample in samples])
    features = np.array([_features(sample.pack, knees=places) for sample in samples])
    # Relative errors: divided by its seconds, a step of 10 ms counts as much as one of 1 s.
    rows, wanted = features / seconds[:, None], np.ones(len(samples))
    if prior is not None:
        plain = replace(prior, launches=None)
        # The median, so that a single slow step does not move the scale.
        scale = statistics.median(sample.seconds / plain.step_seconds(sample.pack) for sample in samples)
        guess = scale * _values(plain, places)
        # a coefficient that the prior has none of may become a tenth of the step at no more than the same price
        typical = np.maximum(np.median(features, axis=0), 1e-12)
        unit = np.maximum(guess, 0.1 * float(np.median(seconds)) / typical)
        weight = math.sqrt(PRIOR_WEIGHT)
        rows = np.vstack([rows, weight * np.diag(1 / unit)])
        wanted = np.concatenate([wanted, weight * guess / unit])
    # columns differ by many orders of magnitude; scaled to one, so that the solver's tolerance means the same to each
    scales = np.maximum(rows.max(axis=0), 1e-300)
    solution = _non_negative(rows / scales, wanted)
    return _cost([float(value) for value in solution / scales], places)


def _fit_regimes(
    samples: Sequence[StepSample],
    places: Sequence[float],
    prior: StepCost | None,
    launched: LaunchRegime,
    cost: StepCost,
) -> StepCost:
    """Fit work and launches in turn, each on the launched steps that it explains; the better of all rounds."""
    by_host = [sample for sample in samples if sample.num_tokens >= launched.from_tokens]
    if not by_host:
        # nothing says otherwise than the prior
        return replace(cost, launches=prior.launches) if prior is not None else cost
    # at first the floor is below every launched step
    waits = {
        id(sample) for sample in sorted(by_host, key=lambda s: s.seconds / _passes(s, launched))[: len(by_host) // 2]
    }
    best, best_error = cost, statistics.fmean(errors_percent(cost, samples))
    for _ in range(MOST_ROUNDS):
        working = [sample for sample in samples if id(sample) not in waits]
        if not waits or len(working) < 3:
            break
        floor = _fit_floor([sample for sample in samples if id(sample) in waits], launched)
        work = _fit_work(working, places, prior)
        both = replace(work, launches=floor)
        # Rounds may alternate between two assignments: the best one is kept, not the last.
        error = statistics.fmean(errors_percent(both, samples))
        if error < best_error:
            best, best_error = both, error
        moved = {
            id(sample)
            for sample in by_host
            if floor.seconds(num_tokens=sample.num_tokens, num_sequences=sample.num_sequences)
            > work.step_seconds(sample.pack)
        }
        if moved == waits:
            break
        waits = moved
    return best


def _non_negative(rows: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    # Half a second of imports, which `check` and `init` would pay for although nothing was measured yet.
    from scipy.optimize import nnls

    solution: NDArray[Any] = nnls(rows, wanted)[0]
    return solution


def _passes(sample: StepSample, launched: LaunchRegime) -> int:
    return math.ceil(sample.num_tokens / launched.tokens_per_pass)


def _fit_floor(samples: Sequence[StepSample], launched: LaunchRegime) -> LaunchFloor:
    rows = np.array([[_passes(sample, launched), sample.num_sequences] for sample in samples])
    relative = rows / np.array([sample.seconds for sample in samples])[:, None]
    scales = np.maximum(relative.max(axis=0), 1e-300)
    solution = _non_negative(relative / scales, np.ones(len(samples)))
    per_pass, per_sequence = (float(value) for value in solution / scales)
    return LaunchFloor(
        from_tokens=launched.from_tokens,
        tokens_per_pass=launched.tokens_per_pass,
        seconds_per_pass=per_pass,
        seconds_per_sequence=per_sequence,
    )


def _features(pack: Sequence[AdapterWork], *, knees: Sequence[float]) -> list[float]:
    """Return what a pack holds of each of ``COEFFICIENTS``, and its tokens beyond each knee."""
    tokens = sum(work.num_tokens for work in pack)
    return [
        1.0,
        float(len(pack)),
        float(sum(work.r for work in pack)),
        tokens,
        sum(work.r * work.num_tokens for work in pack),
        sum(work.sum_squares for work in pack),
        sum(work.num_sequences for work in pack),
        *(max(0.0, tokens - knee) for knee in knees),
    ]


def _values(cost: StepCost, places: Sequence[float]) -> NDArray[np.float64]:
    """Return coefficients in the order of :func:`_features`."""
    slopes = {knee.at_tokens: knee.seconds_per_token for knee in cost.knees}
    plain = (getattr(cost, name) for name in COEFFICIENTS)
    return np.array([*plain, *(slopes.get(place, 0.0) for place in places)])


def _cost(values: Sequence[float], places: Sequence[float]) -> StepCost:
    slopes = values[len(COEFFICIENTS) :]
    plain: dict[str, Any] = dict(zip(COEFFICIENTS, values, strict=False))
    return StepCost(
        **plain,
        knees=tuple(
            Knee(at_tokens=place, seconds_per_token=slope)
            for place, slope in zip(places, slopes, strict=True)
            # a knee that costs nothing only slows the planners' programs
            if slope > 0
        ),
    )
