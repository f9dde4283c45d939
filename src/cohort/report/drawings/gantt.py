"""Tasks over time: a row for each GPU with planned bars, and the actual bars below them where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cohort.core.units import counted, format_duration
from cohort.report.drawings.svg import WIDE_CHART, Frame, linear_axis, mark, rows_axis, text, time_unit

__all__ = ["Pause", "TaskBar", "gantt_drawing", "gantt_legend"]

_ROW, _LANE, _LEAST_ROW, _MOST_HEIGHT = 24.0, 19.0, 5.0, 720.0
# between two devices, in lanes
_GAP = 0.3
# tasks that a legend names by their colours
_MOST_NAMED = 24
# of the whole time: planned bars that overlap by less still share a lane
_SAME_LANE_SHARE = 1e-3
# classes of report.css; tasks beyond take turns
NUM_TONES = 8
# units a character of a bar's label takes at 11 px
_CHARACTER = 6.2


@dataclass(frozen=True, kw_only=True)
class TaskBar:
    """A task on some GPUs for a while. Seconds count from the start of the plan or the queue.

    Attributes:
        note: More for the tooltip, such as ``exited early``.
        ending: Shape of the mark at its end (:func:`~cohort.report.drawings.svg.mark`); empty for none.
    """

    task: str
    gpu_ids: tuple[int, ...]
    start_seconds: float
    end_seconds: float
    note: str = ""
    ending: str = ""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Time that is left out of the drawing."""

    at_seconds: float
    seconds: float


def gantt_drawing(
    planned: Sequence[TaskBar],
    *,
    gpu_ids: Sequence[int],
    actual: Sequence[TaskBar] = (),
    tasks: Sequence[str] | None = None,
    device: str = "GPU",
    happened: str = "actual",
    pauses: Sequence[Pause] = (),
    noun: str = "task",
) -> str:
    """Return the drawing; empty where nothing is planned and nothing ran.

    Args:
        planned: The bars of a plan.
        gpu_ids: All devices, from the top.
        actual: The bars of what happened, drawn below those of the plan.
        tasks: Names in the order of their colours; those of the bars by default.
        device: The word for a row: GPU or worker.
        happened: The word for ``actual``: ``actual`` or ``simulated``.
        pauses: Times that are left out of all seconds.
        noun: What a bar is.
    """
    bars = [*planned, *actual]
    if not bars or not gpu_ids:
        return ""
    names = list(tasks if tasks is not None else dict.fromkeys(bar.task for bar in bars))
    end = max(bar.end_seconds for bar in bars)
    unit, divisor = time_unit(end)
    # bars of several plans may want the same GPU at the same time: they then stand one below the other
    lanes = _lanes_of(planned, tolerance=_SAME_LANE_SHARE * end) if actual else {}
    count = 1 + max(lanes.values(), default=0)
    # tasks that share a device at the same time stand one below the other, too
    happened_lanes = _lanes_of(actual, tolerance=_SAME_LANE_SHARE * end)
    total = count + 1 + max(happened_lanes.values(), default=0)
    wanted = (total + _GAP) * _LANE if actual else _ROW
    row_height = min(wanted, max(_LEAST_ROW, _MOST_HEIGHT / len(gpu_ids)))
    frame = Frame(
        width=WIDE_CHART,
        height=row_height * len(gpu_ids) + 52,
        x=linear_axis(0.0, max(end, 1e-9) / divisor, count=10),
        y=rows_axis(gpu_ids),
        x_label=f"{unit} from the start" + (", pauses left out" if pauses else ""),
        y_label=device,
    )
    row = {gpu: index for index, gpu in enumerate(gpu_ids)}
    parts = [frame.axes()]
    for kind, name, own in (("planned", "planned", planned), ("actual", happened, actual)):
        pale = " pale" if actual and kind == "planned" else ""
        for bar in own:
            lane = lanes.get(bar, 0) if kind == "planned" else count + happened_lanes[bar]
            low, high = _part_of_row(lane, total) if actual else (0.0, 1.0)
            for gpus in _adjacent_rows([row[gpu] for gpu in bar.gpu_ids if gpu in row], joined=not actual):
                top = len(gpu_ids) - gpus[0] - low
                base = len(gpu_ids) - gpus[-1] - high
                left, y_top = frame.at(bar.start_seconds / divisor, top)
                right, y_base = frame.at(bar.end_seconds / divisor, base)
                title = _title(bar, name, device=device)
                parts.append(_bar(bar, title, names, box=(left, y_top, right, y_base), classes=f"{kind}{pale}"))
    parts += [_pause(pause, frame, x=pause.at_seconds / divisor) for pause in pauses]
    tasks_on_devices = f"{counted(len({bar.task for bar in bars}), noun)} on {counted(len(gpu_ids), 'device')}"
    description = f"{tasks_on_devices}; the last ends after {format_duration(end)}." + (
        f" Upper bars are planned, lower ones {happened}." if actual else ""
    )
    return frame.drawing("".join(parts), title=f"{noun.capitalize()}s over time", description=description, name="gantt")


def gantt_legend(
    tasks: Sequence[str],
    *,
    kinds: Sequence[tuple[str, str]] = (),
    endings: Sequence[tuple[str, str]] = (),
    pauses: bool = False,
) -> str:
    """Return the legend of colours, bars and marks.

    Args:
        tasks: Names in the order of their colours.
        kinds: (``planned`` or ``actual``, in words) of the bars that are drawn.
        endings: (shape, in words) of the marks at their ends.
        pauses: Whether pauses are drawn.
    """
    grey = NUM_TONES - 1
    items = [(_swatch(grey, pale=kind == "planned"), words) for kind, words in kinds]
    items += [(f'<g class="bar t{grey}">{mark(shape, 0, 0, classes="")}</g>', words) for shape, words in endings]
    if pauses:
        items.append(('<path d="M0 -8V8" class="pause"/>', "no process ran the queue: left out"))
    items += [(_swatch(index % NUM_TONES), name) for index, name in enumerate(tasks[:_MOST_NAMED])]
    shown = [
        f'<li><svg viewBox="-8 -8 16 16" aria-hidden="true">{sign}</svg>{escape(words)}</li>' for sign, words in items
    ]
    if len(tasks) > _MOST_NAMED:
        shown.append(f"<li>and {len(tasks) - _MOST_NAMED} more, in the same colours again</li>")
    return f'<ul class="key">{"".join(shown)}</ul>'


def _swatch(tone: int, *, pale: bool = False) -> str:
    classes = f"bar{' pale' if pale else ''} t{tone}"
    return f'<g class="{classes}"><rect width="14" height="10" x="-7" y="-5" rx="2"/></g>'


def _lanes_of(bars: Sequence[TaskBar], *, tolerance: float) -> dict[TaskBar, int]:
    """Return the lane of each bar in its rows: the first one that is free from the bar's start on."""
    free_from: dict[tuple[int, int], float] = {}
    lanes: dict[TaskBar, int] = {}
    for bar in sorted(bars, key=lambda bar: bar.start_seconds):
        lane = 0
        while any(free_from.get((gpu, lane), 0.0) > bar.start_seconds + tolerance for gpu in bar.gpu_ids):
            lane += 1
        lanes[bar] = lane
        free_from |= {(gpu, lane): bar.end_seconds for gpu in bar.gpu_ids}
    return lanes


def _part_of_row(lane: int, num_lanes: int) -> tuple[float, float]:
    """Return which part of its row a bar takes: lanes of planned bars, those of what happened, then a gap."""
    height = 1 / (num_lanes + _GAP)
    return lane * height, (lane + 0.95) * height


def _pause(pause: Pause, frame: Frame, *, x: float) -> str:
    at, top = frame.at(x, frame.y.high)
    _, base = frame.at(x, frame.y.low)
    length = format_duration(pause.seconds)
    title = f"no process ran the queue for {length}, which is left out"
    label = text(at, top - 3, f"pause of {length}", classes="tick", anchor="end" if at > frame.width / 2 else "start")
    return f'<g><title>{escape(title)}</title><path d="M{at:.1f} {top:.1f}V{base:.1f}" class="pause"/>{label}</g>'


def _adjacent_rows(rows: Sequence[int], *, joined: bool) -> list[list[int]]:
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
    ending = ""
    if bar.ending and width > 16 and height > 10:
        ending = mark(bar.ending, right - 9, (top + base) / 2, classes="on-bar")
        if label and (len(bar.task) + 1) * _CHARACTER > width - 24:
            label = ""
    tone = names.index(bar.task) % NUM_TONES if bar.task in names else 0
    return (
        f'<g class="bar {classes} t{tone}"><title>{escape(title)}</title>'
        f'<rect x="{left:.1f}" y="{top + 0.7:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'
        f"{label}{ending}</g>"
    )
