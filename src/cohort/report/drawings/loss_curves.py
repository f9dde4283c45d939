"""All loss curves of a run: train EMA and validation, against the share of each trial's planned steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cohort.core.units import counted
from cohort.report.drawings.svg import Axis, Frame, linear_axis, log_axis, mark, polyline
from cohort.report.outcomes import outcome_of, trial_group
from cohort.runs.records import EvaluationRecord, TrialRecord

__all__ = ["Curve", "exponential_average", "loss_curves", "thinned", "trial_panel"]

Curve = Sequence[tuple[int, float]]

# a plot area has some 500 pixels: more points a curve only make the file larger
MAX_POINTS = 160
_WIDTH, _HEIGHT = 560.0, 330.0


def exponential_average(curve: Curve, *, weight: float) -> list[tuple[int, float]]:
    """Return the running average ``a * loss + (1 - a) * average``, begun at the first loss; NaN stays NaN."""
    # with the weight of the early-exit rules, the curve is the one that they read
    averaged: list[tuple[int, float]] = []
    average = math.nan
    for step, loss in curve:
        average = loss if not averaged else weight * loss + (1 - weight) * average
        averaged.append((step, average))
    return averaged


def thinned(curve: Curve, *, limit: int = MAX_POINTS) -> list[tuple[int, float]]:
    """Return at most about ``limit`` points of ``curve``, its first and last among them."""
    if len(curve) <= limit:
        return list(curve)
    stride = math.ceil(len(curve) / limit)
    kept = list(curve[::stride])
    return kept if kept[-1] == curve[-1] else [*kept, curve[-1]]


def _loss_axis(curves: Mapping[int, Curve]) -> Axis:
    """Return an axis from the lowest loss to just above where trials began; a diverging curve leaves at the top."""
    finite = sorted(loss for curve in curves.values() for _, loss in curve if math.isfinite(loss))
    if not finite:
        return linear_axis(0.0, 1.0)
    firsts = sorted(curve[0][1] for curve in curves.values() if curve and math.isfinite(curve[0][1]))
    begun = firsts[int(0.9 * (len(firsts) - 1))] if firsts else finite[-1]
    low, high = finite[0], min(finite[-1], max(begun * 1.05, finite[len(finite) // 2]))
    if low > 0 and high / low > 8:
        return log_axis(low * 0.95, high)
    return linear_axis(low - 0.04 * (high - low), high)


def trial_panel(
    curves: Mapping[int, Curve],
    *,
    trials: Sequence[TrialRecord],
    best_id: int | None,
    y_label: str,
    title: str,
    name: str,
    axis: Callable[[Mapping[int, Curve]], Axis],
) -> str:
    """Return a drawing of one curve for each trial, against the share of its planned steps; ``axis`` is its height."""
    frame = Frame(
        width=_WIDTH,
        height=_HEIGHT,
        x=linear_axis(0.0, 100.0),
        y=axis(curves),
        x_label="planned steps done, %",
        y_label=y_label,
    )
    # the best is drawn last, over all others
    groups = []
    for trial in sorted(trials, key=lambda trial: (trial.trial_id == best_id, trial.trial_id)):
        curve = curves.get(trial.trial_id, ())
        if not curve:
            continue
        outcome = outcome_of(trial)
        points = [frame.at(100 * step / trial.planned_steps, loss) for step, loss in thinned(curve)]
        tooltip = f"trial {trial.trial_id}, {outcome.label}, {trial.steps_done} of {trial.planned_steps} steps"
        last = next(((x, y) for x, y in reversed(points) if math.isfinite(y)), None)
        end = ""
        if last is not None and (trial.status.is_final or len(points) == 1):
            shape = "star" if trial.trial_id == best_id else outcome.shape
            end = mark(shape, *last, classes="", title=tooltip)
        drawn = f"<title>{tooltip}</title>{polyline(points, classes='curve')}{end}"
        groups.append(trial_group(trial, drawn, best_id=best_id))
    description = (
        f"{title} of {counted(len(groups), 'trial')} against the share of their planned steps. "
        "Each line ends in a mark that tells how the trial ended; the table of trials holds the same numbers."
    )
    return frame.drawing(frame.axes() + "".join(groups), title=title, description=description, name=name)


def loss_curves(
    trials: Sequence[TrialRecord],
    *,
    train: Mapping[int, Curve],
    evaluations: Sequence[EvaluationRecord],
    best_id: int | None,
    ema_weight: float,
    unit: str = "nats per token",
) -> tuple[str, str]:
    """Return two drawings: the train EMA and the validation loss; ``unit`` is that of their losses, or empty."""
    averaged = {trial_id: exponential_average(curve, weight=ema_weight) for trial_id, curve in train.items()}
    validation: dict[int, list[tuple[int, float]]] = {}
    for record in evaluations:
        validation.setdefault(record.trial_id, []).append((record.step, record.validation_loss))
    panel = partial(
        trial_panel, trials=trials, best_id=best_id, y_label=f"loss, {unit}" if unit else "loss", axis=_loss_axis
    )
    return (
        panel(averaged, title="Train loss (running average)", name="train"),
        panel(validation, title="Validation loss", name="validation"),
    )
