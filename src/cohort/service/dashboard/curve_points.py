"""Points of curves for a page: every n-th step of each trial, so that a long run draws as fast as a short one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from cohort.runs.reader import RunReader
from cohort.service.dashboard.plain_json import rounded
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric

__all__ = ["MOST_POINTS", "evaluation_curves", "pace_curve", "stride_of", "train_curves"]

MOST_POINTS = 60_000
"""Points of all curves of an answer together: some 600 kB, drawn in a tenth of a second."""
_LEAST_EACH = 40
# of the run time, for the tokens a second; of a run whose steps take longer, half as many as often as that takes
_STRETCHES, _LEAST_STRETCHES = 120, 15
_MOST_EMPTY = 0.1
_MOST_EACH = 800


def stride_of(num_steps: int, *, num_trials: int) -> int:
    """Return n so that every n-th of ``num_steps`` steps of ``num_trials`` trials are few enough points; 1 for all."""
    each = min(_MOST_EACH, max(_LEAST_EACH, MOST_POINTS // max(1, num_trials)))
    least = math.ceil(num_steps / each)
    # a power of two: a page that doubles it keeps every other of its points
    return 1 if least <= 1 else 2 ** math.ceil(math.log2(least))


def train_curves(
    reader: RunReader, *, first: int, last: int, num_trials: int, trials: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the train loss of each trial at every n-th step from ``first`` to ``last``.

    Returns:
        ``stride`` n, and ``curves`` as ``[steps], [losses]`` by trial; a loss that is no number is null.
    """
    stride = stride_of(last - first + 1, num_trials=num_trials)
    # the first step too: where curves begin says how far they fell
    steps = sorted({first, *range(math.ceil(first / stride) * stride, last + 1, stride)})
    found = reader.log.losses_at(steps, trials=trials)
    return {"stride": stride, "first": first, "last": last, "curves": _columns(found)}


def evaluation_curves(reader: RunReader, *, metric: ObjectiveMetric) -> dict[str, Any]:
    """Return the validation loss of each trial at its evaluations, and the task's metric where it is another."""
    losses: dict[int, list[tuple[int, float]]] = defaultdict(list)
    values: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for record in reader.log.evaluations():
        losses[record.trial_id].append((record.step, record.validation_loss))
        if metric.name != LOSS.name and (value := metric.read(record)) is not None:
            values[record.trial_id].append((record.step, value))
    return {"loss": _columns(losses), "metric": _columns(values)}


def pace_curve(reader: RunReader) -> dict[str, Any]:
    """Return the tokens a second, trained and evaluated, over run time in seconds, as ``[times], [rates]``."""
    width = max(reader.run_seconds() / _STRETCHES, 1e-3)
    # what was logged at the very end belongs to the last stretch
    logged = dict(reader.log.tokens_by_time(width))
    tokens = [logged.get(stretch, 0) for stretch in range(_STRETCHES)]
    while len(tokens) > _LEAST_STRETCHES and tokens.count(0) > _MOST_EMPTY * len(tokens):
        # a step is logged at its end: shorter than a step, stretches would show none and then all of it
        tokens = [sum(pair) for pair in zip(tokens[::2], tokens[1::2], strict=True)]
        width *= 2
    return {
        "curve": [
            [rounded((stretch + 0.5) * width) for stretch in range(len(tokens))],
            [rounded(count / width, 4) for count in tokens],
        ]
    }


def _columns(curves: dict[int, list[tuple[int, float]]]) -> dict[str, Any]:
    return {
        str(trial_id): [[step for step, _ in curve], [rounded(loss, 5) for _, loss in curve]]
        for trial_id, curve in curves.items()
    }
