"""The plan of packs that a run followed, drawn against what happened, and what it was predicted to save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.core.units import counted, format_duration
from cohort.report.drawings.gantt import TaskBar, gantt_drawing, gantt_legend
from cohort.runs.packing_records import PackingRecord, PackRecord
from cohort.runs.records import ResidencyRecord

__all__ = ["planned_packs"]


def planned_packs(
    chosen: Sequence[PackingRecord],
    *,
    stays: Sequence[ResidencyRecord],
    slots_per_rank: int,
    num_ranks: int,
    run_seconds: float,
    device: str,
) -> dict[str, Any]:
    """Return the section's drawing, legend and note; an empty drawing where no plan was followed.

    Args:
        chosen: One for each process of the run that had a choice; each plan holds until the next.
        stays: Of trials in slots, which are numbered through all executors.
        run_seconds: When stays end that have not ended yet.
        device: What an executor is: ``GPU`` or ``process``.
    """
    ends: list[float | None] = [None] * len(chosen)
    packs = [(place, pack) for place, record in enumerate(chosen) for pack in record.packs]
    planned, actual = [], []
    for number, (place, pack) in enumerate(packs, start=1):
        name = f"pack {number}"
        until = chosen[place + 1].at_seconds if place + 1 < len(chosen) else float("inf")
        note = f"trials {', '.join(map(str, pack.trial_ids))}"
        # a plan that was given up ends where the next one begins
        if pack.start_seconds < until:
            end = min(pack.end_seconds, until)
            planned.append(_bar(name, pack.rank, pack.start_seconds, end, note=note))
        since = chosen[place].at_seconds
        course = _course(name, pack, stays, since=since, until=until, slots=slots_per_rank, end=run_seconds)
        ends[place] = max([ends[place] or 0.0, *(bar.end_seconds for bar in course)])
        actual += course
    ranks = tuple(range(max([num_ranks, *(bar.gpu_ids[0] + 1 for bar in (*planned, *actual))])))
    drawing = gantt_drawing(planned, gpu_ids=ranks, actual=actual, device=device, noun="pack") if planned else ""
    kinds = (("planned", "planned"), ("actual", "what happened"))
    return {
        "drawing": drawing,
        "legend": gantt_legend([bar.task for bar in planned], kinds=kinds) if planned else "",
        "note": " ".join(_sentence(record, ended=end) for record, end in zip(chosen, ends, strict=True)),
    }


def _sentence(record: PackingRecord, *, ended: float | None) -> str:
    """Say what was chosen, how often it was changed, and what it took up to the last stay of a trial in its packs."""
    told = f"After {format_duration(record.at_seconds)}: {record.choice}; {record.reason}."
    if record.num_changes:
        told += f" Packs that had not begun were placed again {counted(record.num_changes, 'time')}."
    if ended:
        told += f" The packs took {format_duration(ended - record.at_seconds)}."
    return told


def _course(
    name: str, pack: PackRecord, stays: Sequence[ResidencyRecord], *, since: float, until: float, slots: int, end: float
) -> list[TaskBar]:
    """Return where the trials of a pack were, one bar for each executor."""
    spans: dict[int, tuple[float, float]] = {}
    for stay in stays:
        if stay.trial_id not in pack.trial_ids or not since <= stay.start_seconds < until:
            continue
        stop = end if stay.stop_seconds is None else stay.stop_seconds
        first, last = spans.get(stay.slot // slots, (stay.start_seconds, stop))
        spans[stay.slot // slots] = min(first, stay.start_seconds), max(last, stop)
    return [_bar(name, rank, first, last) for rank, (first, last) in sorted(spans.items())]


def _bar(name: str, rank: int, start: float, end: float, *, note: str = "") -> TaskBar:
    return TaskBar(task=name, gpu_ids=(rank,), start_seconds=start, end_seconds=end, note=note)
