"""The packs of tasks, as ``cohort plan --packs`` shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from cohort.core.units import format_duration

if TYPE_CHECKING:
    from cohort.planning.packs import TaskPacks

__all__ = ["pack_facts", "pack_table"]


def pack_table(packs: Sequence[TaskPacks], *, device: str, most_rows: int) -> Table:
    """Return a row for each pack: where, when, and how many trials of which rank and batch size."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("task", "pack on", "from", "to", "trials", "r x batch size"):
        table.add_column(heading, justify="right" if heading in ("from", "to", "trials") else "left")
    rows = [(own, job) for own in packs for job in own.plan.jobs]
    for own, job in rows[:most_rows]:
        kinds = Counter(own.parameters[trial_id] for trial_id in job.trial_ids)
        table.add_row(
            own.task,
            f"{device} {', '.join(map(str, job.gpu_ids))}",
            format_duration(job.start_seconds),
            format_duration(job.end_seconds),
            str(len(job.trial_ids)),
            ", ".join(
                f"{f'{count} of ' if count > 1 else ''}{r} x {size}" for (r, size), count in sorted(kinds.items())
            ),
        )
    if len(rows) > most_rows:
        table.add_row("...", "", "", "", "", f"{len(rows) - most_rows} more; --json lists all")
    return table


def pack_facts(packs: Sequence[TaskPacks], *, device: str) -> dict[str, str]:
    """Return in a line for each task what its packs come to."""
    facts = {}
    for own in packs:
        plan, count = own.plan, len(own.plan.jobs)
        above = 100 * (plan.makespan_seconds / own.bound_seconds - 1) if own.bound_seconds else 0.0
        devices = f"{plan.num_gpus} {device}{'' if plan.num_gpus == 1 else 's'}"
        facts[own.task] = (
            f"{count} pack{'' if count == 1 else 's'} on {devices} end in {format_duration(plan.makespan_seconds)}, "
            f"{above:.1f} % above the bound over all packings; training on one {device} takes "
            f"{format_duration(own.alone_seconds)}"
        )
    return facts
