"""Which trial was in which slot when."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cohort.core.units import counted, format_duration
from cohort.report.drawings.svg import WIDE_CHART, Frame, linear_axis, mark, rows_axis, text, time_unit
from cohort.report.outcomes import outcome_of, trial_group
from cohort.runs.records import ResidencyRecord, TrialRecord

__all__ = ["slot_timeline"]

_MAX_ROW, _MIN_ROW, _MAX_HEIGHT = 26.0, 7.0, 620.0


def slot_timeline(
    stays: Sequence[ResidencyRecord], *, trials: Sequence[TrialRecord], run_seconds: float, best_id: int | None
) -> str:
    """Return the drawing; empty when no trial was ever resident."""
    if not stays:
        return ""
    by_id = {trial.trial_id: trial for trial in trials}
    # only the last stay of a trial shows how the trial ended; after the others it was parked
    last_stay = {stay.trial_id: stay for stay in stays}
    slots = sorted({stay.slot for stay in stays})
    row_height = min(_MAX_ROW, max(_MIN_ROW, _MAX_HEIGHT / len(slots)))
    # a killed process may have logged stays after the run time that it last recorded
    end = max([run_seconds, *(stay.stop_seconds or 0.0 for stay in stays)])
    unit, divisor = time_unit(end)
    frame = Frame(
        width=WIDE_CHART,
        height=row_height * len(slots) + 52,
        x=linear_axis(0.0, max(end, 1e-9) / divisor, count=10),
        y=rows_axis(slots),
        x_label=f"run time, {unit}",
        y_label="row",
    )
    rows = {slot: row for row, slot in enumerate(slots)}
    bars = []
    for stay in stays:
        trial = by_id[stay.trial_id]
        outcome = outcome_of(trial)
        stop_seconds = end if stay.stop_seconds is None else stay.stop_seconds
        top = len(slots) - rows[stay.slot]
        left, y_top = frame.at(stay.start_seconds / divisor, top)
        right, y_base = frame.at(stop_seconds / divisor, top - 1)
        ends_here = last_stay[stay.trial_id] is stay and trial.status.is_final
        ending = outcome.label if ends_here else "paused" if stay.stop_seconds is not None else "still here"
        title = (
            f"trial {stay.trial_id} in row {stay.slot}, {format_duration(stay.start_seconds)} to "
            f"{format_duration(stop_seconds)}: {ending}"
        )
        width, height = max(1.0, right - left - 0.6), y_base - y_top - 1.4
        shape = None
        if ends_here:
            shape = "star" if stay.trial_id == best_id else outcome.shape
        labels = _number_and_mark(str(stay.trial_id), shape, left=left, right=right, top=y_top, base=y_base)
        place = f'x="{left:.1f}" y="{y_top + 0.7:.1f}" width="{width:.1f}" height="{height:.1f}"'
        drawn = f'<title>{escape(title)}</title><rect {place} rx="2" class="stay"/>{labels}'
        bars.append(trial_group(trial, drawn, best_id=best_id))
    description = (
        f"{counted(len(stays), 'stay')} of {counted(len(last_stay), 'trial')} in {counted(len(slots), 'row')} over "
        f"{format_duration(end)}. "
        "Each bar is a trial while it trained; its colour and mark tell how the trial ended."
    )
    return frame.drawing(
        frame.axes() + "".join(bars), title="When each trial trained", description=description, name="slots"
    )


def _number_and_mark(number: str, shape: str | None, *, left: float, right: float, top: float, base: float) -> str:
    """Return what stands on a bar: the trial's number and the mark of its end, as far as there is room."""
    # the tooltip has both
    if base - top <= 11.4:
        return ""
    width, middle, is_high = right - left, (top + base) / 2, base - top > 23
    has_number = width > 7 * len(number) + 8.6
    # where both have no room side by side, a small mark is below the number: colours alone do not tell outcomes
    is_narrow = shape is not None and width <= 7 * len(number) + 22
    drawn = ""
    if has_number:
        drawn = text(left + 4, top + 11 if is_narrow and is_high else middle + 4, number, classes="stay-label")
    if shape is not None and not is_narrow:
        drawn += mark(shape, right - 8, middle, classes="on-bar")
    elif shape is not None and width > 7 and (is_high or not has_number):
        drawn += mark(shape, (left + right) / 2, base - 7 if has_number else middle, classes="on-bar", scale=0.7)
    return drawn
