"""Tables that fit the terminal: headings break, texts wrap, columns are left out, but no number is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

__all__ = ["TableColumn", "fitted_table"]

# two spaces between columns, and rich's one at either edge
_BETWEEN, _EDGES = 2, 2


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of a table in a terminal.

    Attributes:
        heading: Its heading; it may break after a space or an underscore.
        justify: Numbers are right.
        least_width: Where it is above 0 the cells are text, which may become this narrow; else they are never cut.
        wraps: Whether text that is too long goes on in the next line of its row; else it ends in an ellipsis.
        leave_out: Where the table is still too wide, columns are left out in the order of these numbers; 0: never.
    """

    heading: str
    justify: Literal["left", "right"] = "right"
    least_width: int = 0
    wraps: bool = False
    leave_out: int = 0


def fitted_table(
    columns: Sequence[TableColumn], rows: Sequence[Sequence[str | Text]], *, width: int
) -> tuple[Table, tuple[str, ...]]:
    """Return a table of at most ``width`` columns of characters, and the headings that it left out.

    Only columns that are never left out may exceed ``width``.
    """
    shown = list(range(len(columns)))
    widths = [_widths(column, [row[index] for row in rows]) for index, column in enumerate(columns)]
    left_out: list[str] = []

    def total(narrow: int) -> int:
        return sum(widths[index][narrow] for index in shown) + _BETWEEN * (len(shown) - 1) + _EDGES

    candidates = sorted(
        (index for index in shown if columns[index].leave_out), key=lambda index: columns[index].leave_out
    )
    for index in candidates:
        if total(_NARROW) <= width:
            break
        shown.remove(index)
        left_out.append(columns[index].heading)
    final = _shared_out(widths, shown, columns, room=width - total(_NARROW), whole=width - total(_WIDE))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index in shown:
        column = columns[index]
        table.add_column(
            _broken(column.heading, final[index]),
            justify=column.justify,
            width=final[index],
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    return table, tuple(name for name in (column.heading for column in columns) if name in left_out)


_NARROW, _HEADING_BROKEN, _WIDE = 0, 1, 2


def _widths(column: TableColumn, cells: Sequence[str | Text]) -> tuple[int, int, int]:
    """Return the width of a column with text shortened, with its heading broken, and with all in one line."""
    content = max((cell_len(str(cell)) for cell in cells), default=0)
    heading = max(map(cell_len, _parts(column.heading)), default=0)
    whole = max(content, heading)
    narrow = whole if not column.least_width else max(heading, min(content, column.least_width))
    return narrow, whole, max(content, cell_len(column.heading))


def _shared_out(
    widths: Sequence[tuple[int, int, int]],
    shown: Sequence[int],
    columns: Sequence[TableColumn],
    *,
    room: int,
    whole: int,
) -> dict[int, int]:
    """Return the width of each shown column: texts share the ``room``, and whole headings take what they leave."""
    if whole >= 0:
        return {index: widths[index][_WIDE] for index in shown}
    found = {index: widths[index][_NARROW] for index in shown}
    for step in (_HEADING_BROKEN, _WIDE):
        # the last columns first: texts stand there, and the headings of short numbers may stay broken
        for index in sorted(shown, key=lambda index: columns[index].least_width == 0):
            more = min(max(room, 0), widths[index][step] - found[index])
            # half a heading gains nothing
            if step == _WIDE and found[index] + more < widths[index][_WIDE]:
                continue
            found[index] += more
            room -= more
    return found


def _parts(heading: str) -> list[str]:
    return heading.replace("_", "_ ").split()


def _broken(heading: str, width: int) -> str:
    """Return ``heading`` with line breaks after spaces and underscores, so that no line exceeds ``width``."""
    lines = [""]
    for part in _parts(heading):
        joined = lines[-1] + ("" if lines[-1].endswith("_") or not lines[-1] else " ") + part
        if cell_len(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(part)
    return "\n".join(lines)
