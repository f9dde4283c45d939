"""Parallel coordinates: every trial as one line through its hyperparameters to its result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

from cohort.core.units import counted
from cohort.report.drawings.hyperparameter_effects import varied_parameters
from cohort.report.drawings.svg import text
from cohort.report.labels import in_order, number_label, setting_label, shortened
from cohort.report.outcomes import trial_group
from cohort.runs.records import JsonValue, TrialRecord

__all__ = ["parallel_coordinates"]

_WIDTH, _HEIGHT, _TOP, _BASE, _SIDE = 1140.0, 330.0, 34.0, 306.0, 76.0
_MAX_LABELS = 9


class _Column:
    """One vertical axis: places in [0, 1] by the rank of distinct values (parameters), or linear (the result)."""

    def __init__(self, name: str, values: Sequence[JsonValue]) -> None:
        self.name = name
        distinct, _ = in_order(values)
        keys = list(distinct)
        self.places = {key: (index + 0.5) / len(keys) for index, key in enumerate(keys)}
        stride = max(1, math.ceil(len(keys) / _MAX_LABELS))
        self.labels = [(self.places[key], shortened(setting_label(distinct[key]), most=20)) for key in keys[::stride]]

    def place(self, value: JsonValue) -> float:
        return self.places[json.dumps(value)]


def _axis(x: float, name: str, labels: Sequence[tuple[float, str]]) -> str:
    is_last = x > _WIDTH - _SIDE - 1
    parts = [f'<path d="M{x:.1f} {_TOP}V{_BASE}" class="axis"/>', text(x, 16, name, classes="label", anchor="middle")]
    side, anchor = (6, "start") if is_last else (-6, "end")
    # curves reach an inner axis level with its labels, which therefore stand above them
    drop = 4 if is_last or x < _SIDE + 1 else -5
    parts += [text(x + side, _y(place) + drop, label, classes="tick halo", anchor=anchor) for place, label in labels]
    return "".join(parts)


def _y(place: float) -> float:
    return _BASE - place * (_BASE - _TOP)


def parallel_coordinates(
    trials: Sequence[TrialRecord],
    *,
    best_id: int | None,
    value_label: str,
    maximize: bool,
    followed: Mapping[str, str],
) -> str:
    """Return the drawing, better results higher; empty with fewer than two varied hyperparameters or results.

    A hyperparameter that is a multiple of another (``followed``) has no axis of its own.
    """
    ranked = [trial for trial in trials if trial.best_value is not None]
    names = varied_parameters(ranked, followed=followed)
    columns = [_Column(name, [trial.parameters.get(name) for trial in ranked]) for name in names]
    if len(columns) < 2 or len(ranked) < 2:
        return ""
    costs = {trial.trial_id: (-1 if maximize else 1) * (trial.best_value or 0.0) for trial in ranked}
    ordered = sorted(costs.values())
    # the worst tenth shares the foot of the axis, so that diverged trials do not squeeze the rest
    low, high = ordered[0], ordered[int(0.9 * (len(ordered) - 1))]
    span = (high - low) or 1.0
    results = {trial_id: max(0.0, 1 - (cost - low) / span) for trial_id, cost in costs.items()}
    step = (_WIDTH - 2 * _SIDE) / len(columns)
    xs = [_SIDE + step * index for index in range(len(columns) + 1)]
    lines = []
    for trial in sorted(ranked, key=lambda trial: (trial.trial_id == best_id, -costs[trial.trial_id])):
        places = [column.place(trial.parameters.get(column.name)) for column in columns] + [results[trial.trial_id]]
        # curves that leave each axis at a right angle are easier to tell apart than straight lines
        path = f"M{xs[0]:.1f} {_y(places[0]):.1f}"
        for (x0, p0), (x1, p1) in zip(zip(xs, places, strict=True), zip(xs[1:], places[1:], strict=True), strict=False):
            middle = (x0 + x1) / 2
            path += f"C{middle:.1f} {_y(p0):.1f} {middle:.1f} {_y(p1):.1f} {x1:.1f} {_y(p1):.1f}"
        title = escape(f"trial {trial.trial_id}: {value_label} {trial.best_value:.4g}")
        drawn = f'<title>{title}</title><path d="{path}" class="curve"/>'
        lines.append(trial_group(trial, drawn, best_id=best_id))
    sign = -1 if maximize else 1
    ends = [(1.0, number_label(sign * low))]
    if high > low:
        ends.append((0.0, ("≤ " if maximize else "≥ ") + number_label(sign * high)))
    axes = "".join(_axis(x, column.name, column.labels) for x, column in zip(xs, columns, strict=False))
    axes += _axis(xs[-1], f"best {value_label}", ends)
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="Parallel coordinates: each of '
        f"{counted(len(ranked), 'trial')} as a line through {counted(len(columns), 'hyperparameter')} to its best "
        f'{escape(value_label)}">'
        f"{''.join(lines)}{axes}</svg>"
    )
