"""What each of several GPUs did over time: trained, evaluated, or waited for the others."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cohort.core.units import counted, format_duration
from cohort.report.drawings.svg import WIDE_CHART, Frame, linear_axis, rows_axis, time_unit
from cohort.runs.records import RankWorkRecord

__all__ = ["rank_work_drawing", "rank_work_note"]

_MAX_ROW, _MIN_ROW, _MAX_HEIGHT = 54.0, 18.0, 620.0
# columns narrower than three units say nothing that their neighbours do not
_MOST_COLUMNS = 340


def rank_work_drawing(work: Sequence[RankWorkRecord], *, device: str) -> str:
    """Return the drawing: a row for each GPU, and in it columns as high as the share of the time that it worked.

    Args:
        work: By time and rank; without any the drawing is empty.
        device: What a row is: ``GPU`` or ``process``.
    """
    if not work:
        return ""
    ranks = sorted({record.rank for record in work})
    end = max(record.end_seconds for record in work)
    row_height = min(_MAX_ROW, max(_MIN_ROW, _MAX_HEIGHT / len(ranks)))
    unit, divisor = time_unit(end)
    frame = Frame(
        width=WIDE_CHART,
        height=row_height * len(ranks) + 52,
        x=linear_axis(0.0, max(end, 1e-9) / divisor, count=10),
        y=rows_axis(ranks),
        x_label=f"run time, {unit}",
        y_label=device,
    )
    columns = []
    for row, rank in enumerate(ranks):
        foot = len(ranks) - 1 - row
        for record in _joined([record for record in work if record.rank == rank], least_seconds=end / _MOST_COLUMNS):
            columns.append(_column(record, frame, foot=foot, divisor=divisor, device=device))
    description = (
        f"The work of {counted(len(ranks), device)} over {format_duration(end)}. {rank_work_note(work, device=device)}"
    )
    title = f"Work of each {device}"
    return frame.drawing(frame.axes() + "".join(columns), title=title, description=description, name="rank-work")


def rank_work_note(work: Sequence[RankWorkRecord], *, device: str) -> str:
    """Return in words how much of the time each GPU worked; empty without a record."""
    told = []
    for rank in sorted({record.rank for record in work}):
        own = [record for record in work if record.rank == rank]
        seconds = sum(record.end_seconds - record.start_seconds for record in own)
        busy = sum(record.busy_seconds for record in own)
        told.append(f"{device} {rank} worked {100 * min(1.0, busy / seconds):.0f} %")
    return f"{', '.join(told)} of the time." if told else ""


def _joined(work: Sequence[RankWorkRecord], *, least_seconds: float) -> list[RankWorkRecord]:
    """Return the stretches of one rank, short ones that follow each other as one."""
    found: list[RankWorkRecord] = []
    for record in work:
        last = found[-1] if found else None
        # a pause between two processes of the run stays a gap
        follows = last is not None and abs(record.start_seconds - last.end_seconds) < 1e-6
        if last is None or not follows or last.end_seconds - last.start_seconds >= least_seconds:
            found.append(record)
            continue
        found[-1] = RankWorkRecord(
            rank=last.rank,
            start_seconds=last.start_seconds,
            end_seconds=record.end_seconds,
            train_seconds=last.train_seconds + record.train_seconds,
            evaluate_seconds=last.evaluate_seconds + record.evaluate_seconds,
            num_tokens=last.num_tokens + record.num_tokens,
        )
    return found


def _column(record: RankWorkRecord, frame: Frame, *, foot: int, divisor: float, device: str) -> str:
    seconds = max(record.end_seconds - record.start_seconds, 1e-9)
    # 0.9: rows do not touch where all of them work all the time
    trains, evaluates = (0.9 * min(1.0, part / seconds) for part in (record.train_seconds, record.evaluate_seconds))
    evaluates = min(evaluates, 0.9 - trains)
    left, base = frame.at(record.start_seconds / divisor, foot)
    right, middle = frame.at(record.end_seconds / divisor, foot + trains)
    _, top = frame.at(0.0, foot + trains + evaluates)
    title = (
        f"{device} {record.rank}, {format_duration(record.start_seconds)} to {format_duration(record.end_seconds)}: "
        f"trained {100 * record.train_seconds / seconds:.0f} %, evaluated "
        f"{100 * record.evaluate_seconds / seconds:.0f} %"
    )
    x, width = f"{left:.1f}", f"{max(0.4, right - left):.1f}"
    bars = [
        f'<rect x="{x}" y="{y:.1f}" width="{width}" height="{height:.1f}" class="{name}"/>'
        for y, height, name in ((middle, base - middle, "work-train"), (top, middle - top, "work-evaluate"))
        if height > 0.05
    ]
    return f"<g><title>{escape(title)}</title>{''.join(bars)}</g>"
