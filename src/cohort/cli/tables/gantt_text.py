"""Draws a plan in a terminal: a row for each device, tasks as blocks, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from cohort.core.units import format_duration
from cohort.scheduling.placement.records import Placement

__all__ = ["print_gantt"]

_COLOURS = ("blue", "dark_orange3", "green4", "magenta", "gold3", "deep_sky_blue3", "slate_blue1", "grey50")
# more rows do not fit on a screen; the page draws them all
_MOST_ROWS = 32
_MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def print_gantt(
    console: Console, placements: Sequence[Placement], *, gpu_ids: Sequence[int], names: Sequence[str], device: str
) -> None:
    """Draw ``placements``, a row for each of ``gpu_ids``; without colours, blocks are in brackets.

    Where a block is too short for its task's name it has a letter, which a line below explains.

    ``names`` are the tasks in the order of their colours; ``device`` is the label of a row, GPU or worker.
    """
    end = max((placement.end_seconds for placement in placements), default=0.0)
    if end <= 0:
        return
    shown = list(gpu_ids)[:_MOST_ROWS]
    label_width = len(device) + 1 + max(len(str(gpu)) for gpu in shown)
    width = max(20, console.width - label_width - 3)
    lettered: set[str] = set()
    for gpu in shown:
        line = Text(f"{device} {gpu}".rjust(label_width) + " │")
        blocks = sorted((block for block in placements if gpu in block.gpu_ids), key=lambda block: block.start_seconds)
        # rounding may let blocks touch or overlap by a column: each begins where the one before it ended
        column = 0
        for block in blocks:
            first = max(column, round(block.start_seconds / end * width))
            last = max(first, round(block.end_seconds / end * width))
            line.append(" " * (first - column))
            line.append(
                _block(block.task_id, last - first, names, coloured=console.is_terminal and not console.no_color)
            )
            if 0 < last - first < len(block.task_id) + 2:
                lettered.add(block.task_id)
            column = last
        console.print(line, no_wrap=True, crop=True)
    if len(gpu_ids) > len(shown):
        console.print(f"{len(gpu_ids) - len(shown)} more {device}s are not drawn; -o PAGE.html draws all")
    console.print(" " * label_width + " └" + "─" * width)
    console.print(" " * (label_width + 2) + "0s" + format_duration(end).rjust(width - 2), no_wrap=True, crop=True)
    if lettered:
        key = (f"{_mark(name, names)} {name}" for name in names if name in lettered)
        console.print(Text(f"tasks: {', '.join(key)}"))


def _block(task: str, width: int, names: Sequence[str], *, coloured: bool) -> Text:
    """Return ``width`` columns of a task: its name where it fits."""
    index = names.index(task)
    label = task if len(task) + 2 <= width else _mark(task, names)
    if width <= 0:
        return Text("")
    if coloured:
        # the mark even where nothing else has room: colours repeat, and not everyone can tell them apart
        return Text(
            (label if width == 1 else f" {label}")[:width].ljust(width),
            style=f"bold white on {_COLOURS[index % len(_COLOURS)]}",
        )
    if width == 1:
        return Text(label[:1])
    return Text(("[" + label[: width - 2]).ljust(width - 1, "·") + "]")


def _mark(task: str, names: Sequence[str]) -> str:
    return _MARKS[names.index(task) % len(_MARKS)]
