"""Which task holds which GPU when: a row a GPU, planned bars, and actual ones below them where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cohort.core.units import format_duration
from cohort.engine.report.svg import Axis, Frame, linear_axis, text

__all__ = ["TaskBar", "gantt_drawing"]

_WIDTH = 1140.0
_ROW, _PAIR_ROW, _LEAST_ROW, _MOST_HEIGHT = 24.0, 38.0, 5.0, 720.0
# classes of report.css; tasks beyond take turns
NUM_TONES = 8
# units a character of a bar's label takes at 11 px
_CHARACTER = 6.2


@dataclass(frozen=True, kw_only=True)
class TaskBar:
    """A task on some GPUs for a while. Seconds from the start of the plan or the queue.

    Attributes:
        task: Its name.
        gpu_ids: What it holds.
        start_seconds, end_seconds: From when to when.
        note: More for the tooltip, such as ``exited early``.
    """

    task: str
    gpu_ids: tuple[int, ...]
    start_seconds: float
    end_seconds: float
    note: str = ""


def gantt_drawing(
    planned: Sequence[TaskBar],
    *,
    gpu_ids: Sequence[int],
    actual: Sequence[TaskBar] = (),
    tasks: Sequence[str] | None = None,
    device: str = "GPU",
    happened: str = "actual",
) -> str:
    """Return the drawing; empty where nothing is planned and nothing ran.

    Args:
        planned: What a plan says.
        gpu_ids: All devices, from the top.
        actual: What happened instead; then each device has two rows.
        tasks: Names in the order of their colours; those of the bars by default.
        device: What a row is: GPU or worker.
        happened: What ``actual`` is called: ``actual``, or ``simulated``.
    """
    bars = [*planned, *actual]
    if not bars or not gpu_ids:
        return ""
    names = list(tasks if tasks is not None else dict.fromkeys(bar.task for bar in bars))
    end = max(bar.end_seconds for bar in bars)
    unit, divisor = ("seconds", 1.0) if end < 180 else ("minutes", 60.0) if end < 10800 else ("hours", 3600.0)
    wanted = _PAIR_ROW if actual else _ROW
    row_height = min(wanted, max(_LEAST_ROW, _MOST_HEIGHT / len(gpu_ids)))
    frame = Frame(
        width=_WIDTH,
        height=row_height * len(gpu_ids) + 52,
        x=linear_axis(0.0, max(end, 1e-9) / divisor, count=10),
        y=_rows(gpu_ids),
        x_label=f"{unit} from the start",
        y_label=device,
    )
    row = {gpu: index for index, gpu in enumerate(gpu_ids)}
    parts = [frame.axes()]
    for kind, name, own in (("planned", "planned", planned), ("actual", happened, actual)):
        half = (0.0, 0.46) if kind == "planned" else (0.5, 1.0)
        low, high = half if actual else (0.0, 1.0)
        pale = " pale" if actual and kind == "planned" else ""
        for bar in own:
            for gpus in _neighbours([row[gpu] for gpu in bar.gpu_ids if gpu in row], joined=not actual):
                top = len(gpu_ids) - gpus[0] - low
                base = len(gpu_ids) - gpus[-1] - high
                left, y_top = frame.at(bar.start_seconds / divisor, top)
                right, y_base = frame.at(bar.end_seconds / divisor, base)
                title = _title(bar, name, device=device)
                parts.append(_bar(bar, title, names, box=(left, y_top, right, y_base), classes=f"{kind}{pale}"))
    count = len({bar.task for bar in bars})
    description = f"{count} tasks on {len(gpu_ids)} devices; the last ends after {format_duration(end)}." + (
        f" Upper bars are planned, lower ones {happened}." if actual else ""
    )
    return frame.drawing("".join(parts), title="Tasks over time", description=description, name="gantt")


def _rows(gpu_ids: Sequence[int]) -> Axis:
    """One row a device, the first on top; labels thinned where rows are low."""
    stride = max(1, len(gpu_ids) // 32)
    count = len(gpu_ids)
    ticks = tuple((1 - (row + 0.5) / count, str(gpu)) for row, gpu in enumerate(gpu_ids) if row % stride == 0)
    return Axis(ticks=ticks, low=0.0, high=float(count))


def _neighbours(rows: Sequence[int], *, joined: bool) -> list[list[int]]:
    """Return rows as runs of neighbours, which are drawn as one bar; each alone unless ``joined``."""
    runs: list[list[int]] = []
    for row in sorted(rows):
        if joined and runs and runs[-1][-1] == row - 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _title(bar: TaskBar, kind: str, *, device: str) -> str:
    where = f"{device}{'s' if len(bar.gpu_ids) > 1 else ''} {', '.join(map(str, bar.gpu_ids))}"
    when = f"{format_duration(bar.start_seconds)} to {format_duration(bar.end_seconds)}"
    return f"{bar.task} on {where}, {kind}: {when}" + (f"; {bar.note}" if bar.note else "")


def _bar(
    bar: TaskBar, title: str, names: Sequence[str], *, box: tuple[float, float, float, float], classes: str
) -> str:
    left, top, right, base = box
    width, height = max(1.0, right - left - 0.8), max(1.0, base - top - 1.4)
    label, middle = "", (top + base) / 2 + 4
    most = int((width - 8) / _CHARACTER)
    if most >= 2 and height > 10:
        shown = bar.task if len(bar.task) <= most else bar.task[: most - 1] + "…"
        label = text(left + 4, middle, shown, classes="bar-label")
    tone = names.index(bar.task) % NUM_TONES if bar.task in names else 0
    return (
        f'<g class="bar {classes} t{tone}"><title>{escape(title)}</title>'
        f'<rect x="{left:.1f}" y="{top + 0.7:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>{label}</g>'
    )
