"""The effect of each hyperparameter: the best value of every trial against the hyperparameter's value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from cohort.core.seeds import derive_seed
from cohort.core.units import counted
from cohort.report.drawings.svg import Axis, Frame, band_axis, linear_axis, log_axis, mark
from cohort.report.labels import in_order, is_number, setting_label, shortened
from cohort.report.outcomes import outcome_of, trial_group
from cohort.runs.records import JsonValue, TrialRecord

__all__ = ["Effect", "hyperparameter_effects", "varied_parameters"]

# with more values than this a number is drawn on a continuous axis instead of in bands
_MAX_BANDS = 12
_WIDTH, _HEIGHT = 372.0, 250.0
# marks at the ends of a logarithmic axis do not stand on its edge
_PAD = 1.15


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One hyperparameter's drawing.

    Attributes:
        best_value: Its value in the best trial, as text.
        tied: Others that the task writes as multiples of it.
        spread: Difference between the medians of its best and worst value; 0 on a continuous axis.
    """

    parameter: str
    drawing: str
    best_value: str
    spread: float
    tied: tuple[str, ...] = ()


def varied_parameters(trials: Sequence[TrialRecord], *, followed: Mapping[str, str]) -> list[str]:
    """Return the hyperparameters that differ between trials, in their order, without those that follow one of them."""
    return list(_varied_with_followers(trials, followed=followed))


def _varied_with_followers(trials: Sequence[TrialRecord], *, followed: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the varied hyperparameters, each with those that follow it (``lora_alpha: 2r``)."""
    varied = {}
    for name in dict.fromkeys(name for trial in trials for name in trial.parameters):
        values = [json.dumps(trial.parameters.get(name)) for trial in trials]
        # numbered by first occurrence, hyperparameters whose values go one to one have the same numbers
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        if len(numbers) > 1:
            varied[name] = [numbers[value] for value in values]
    # where the trials do not have the multiple that the task writes, both are shown
    tied = {name: other for name, other in followed.items() if name in varied and varied[name] == varied.get(other)}
    return {name: [other for other in varied if tied.get(other) == name] for name in varied if name not in tied}


def _value_axis(values: Sequence[float], *, maximize: bool) -> Axis:
    """Return the axis of best values, down to the best of them."""
    # worse ones are clipped at three quartile ranges: one bad trial would flatten the marks of all others
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    quarter, three = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    reach = 3 * (three - quarter)
    if reach > 0:
        low, high = (max(low, quarter - reach), high) if maximize else (low, min(high, three + reach))
    pad = 0.06 * (high - low)
    axis = linear_axis(low - pad, high + pad, count=5)
    # the margin for marks needs no labels: an accuracy of 1.02 would be one
    return replace(axis, ticks=tuple(tick for tick in axis.ticks if axis.place(low) <= tick[0] <= axis.place(high)))


def _parameter_axis(values: Sequence[JsonValue], *, is_log: bool | None) -> tuple[Axis, dict[str, float] | None]:
    """Return the axis and the band of each value; a continuous axis has no bands.

    ``is_log`` says how a range was searched; None: it was a list, or the task is not recorded.
    """
    distinct, all_numbers = in_order(values)
    if all_numbers and (is_log is not None or len(distinct) > _MAX_BANDS):
        numbers = [value for value in distinct.values() if is_number(value)]
        low, high = min(numbers), max(numbers)
        if is_log is None:
            is_log = low > 0 and high / low > 20
        if is_log:
            return log_axis(low / _PAD, high * _PAD), None
        pad = 0.04 * (high - low)
        return linear_axis(low - pad, high + pad), None
    bands = {key: float(index) for index, key in enumerate(distinct)}
    # about 6 units a character at 11 px
    most = max(4, int((_WIDTH - 66) / len(distinct) / 6.2))
    return band_axis([shortened(setting_label(value), most=most) for value in distinct.values()]), bands


def _effect(
    parameter: str,
    *,
    tied: Sequence[str],
    trials: Sequence[TrialRecord],
    best: TrialRecord | None,
    value_label: str,
    y: Axis,
    is_log: bool | None,
) -> Effect:
    x, bands = _parameter_axis([trial.parameters.get(parameter) for trial in trials], is_log=is_log)
    frame = Frame(width=_WIDTH, height=_HEIGHT, x=x, y=y, x_label=parameter, y_label=f"best {value_label}")
    marks, by_band = [], dict[float, list[float]]()
    # the best is drawn last, over all others
    for trial in sorted(trials, key=lambda trial: best is not None and trial.trial_id == best.trial_id):
        if trial.best_value is None:
            continue
        setting = trial.parameters.get(parameter)
        if bands is None:
            at = setting if is_number(setting) else 0.0
        else:
            band = bands[json.dumps(setting)]
            by_band.setdefault(band, []).append(trial.best_value)
            # spread sideways by a hash of the trial, so that a report made twice is the same report
            at = band + 0.5 * (derive_seed("report", trial.trial_id) / 2**63 - 0.5)
        outcome = outcome_of(trial)
        is_best = best is not None and trial.trial_id == best.trial_id
        title = f"trial {trial.trial_id}: {parameter} {setting_label(setting)}, {value_label} {trial.best_value:.4g}"
        drawn = mark("star" if is_best else outcome.shape, *frame.at(at, trial.best_value), classes="", title=title)
        marks.append(trial_group(trial, drawn, best_id=None if best is None else best.trial_id))
    medians = {band: median(found) for band, found in by_band.items()}
    bars = []
    for band, value in medians.items():
        (left, height), (right, _) = frame.at(band - 0.32, value), frame.at(band + 0.32, value)
        bars.append(
            f'<path d="M{left:.1f} {height:.1f}H{right:.1f}" class="median">'
            f"<title>median {value:.4g} of {counted(len(by_band[band]), 'trial')}</title></path>"
        )
    spread = max(medians.values()) - min(medians.values()) if len(medians) > 1 else 0.0
    title = f"Effect of {parameter}"
    description = f"Best {value_label} of each trial by {parameter}. " + "; ".join(
        f"{x.ticks[int(band)][1]}: median {value:.4g} of {len(by_band[band])}"
        for band, value in sorted(medians.items())
    )
    drawing = frame.drawing(
        frame.axes() + "".join(bars) + "".join(marks),
        title=title,
        description=description,
        name=f"effect-{re.sub(r'[^A-Za-z0-9]+', '-', parameter)}",
    )
    best_value = "" if best is None else shortened(setting_label(best.parameters.get(parameter)), most=32)
    return Effect(parameter=parameter, drawing=drawing, best_value=best_value, spread=spread, tied=tuple(tied))


def hyperparameter_effects(
    trials: Sequence[TrialRecord],
    *,
    best: TrialRecord | None,
    value_label: str,
    maximize: bool,
    followed: Mapping[str, str],
    ranges: Mapping[str, bool],
) -> list[Effect]:
    """Return one drawing for each hyperparameter that varies; none while no trial has a finite evaluation.

    Args:
        trials: All trials.
        best: The run's result.
        value_label: The task's metric in words.
        maximize: Whether its larger values are better.
        followed: The base of each multiple of another hyperparameter, whose drawing names it too.
        ranges: The hyperparameters searched in a range, and whether in the logarithm, as their axis then is.
    """
    values = [trial.best_value for trial in trials if trial.best_value is not None and math.isfinite(trial.best_value)]
    if not values:
        return []
    y = _value_axis(values, maximize=maximize)
    return [
        _effect(
            parameter,
            tied=tied,
            trials=trials,
            best=best,
            value_label=value_label,
            y=y,
            is_log=ranges.get(parameter),
        )
        for parameter, tied in _varied_with_followers(trials, followed=followed).items()
    ]
