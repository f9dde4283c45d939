"""Tables fit any width and cut no number: what has no room is left out by name."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.table import Table

from cohort.cli.tables.fitted_table import TableColumn, fitted_table

COLUMNS = (
    TableColumn(heading="trial"),
    TableColumn(heading="learning_rate", leave_out=2),
    TableColumn(heading="lora_alpha", leave_out=1),
    TableColumn(heading="validation loss"),
    TableColumn(heading="status", justify="left", least_width=9, wraps=True),
    TableColumn(heading="note", justify="left", least_width=6, leave_out=3),
)
ROWS = [("59", "1.234e-05", "128", "0.0001234", "stopped: underperforming", "a long note")] * 3


def shown(table: Table) -> list[str]:
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def drawn(width: int, rows: Sequence[Sequence[str]] = ROWS) -> tuple[list[str], tuple[str, ...]]:
    table, left_out = fitted_table(COLUMNS, rows, width=width)
    return shown(table), left_out


@pytest.mark.parametrize("width", range(35, 121, 5))
def test_a_table_is_never_wider_and_numbers_are_whole(width: int) -> None:
    lines, left_out = drawn(width)
    assert max(map(len, lines)) <= width
    whole = "\n".join(lines)
    cells = {"lora_alpha": "128", "learning_rate": "1.234e-05", "trial": "59", "validation loss": "0.0001234"}
    for heading, cell in cells.items():
        assert (cell in whole) == (heading not in left_out)
    assert not set(left_out) & {"trial", "validation loss", "status"}


def test_headings_break_before_anything_is_left_out() -> None:
    wide, none = drawn(100)
    assert "learning_rate" in wide[1]
    broken, still_none = drawn(75)
    assert none == still_none == ()
    assert "learning_rate" not in "".join(broken)
    assert "learning_" in "".join(broken)


def test_columns_leave_in_their_order_and_are_named() -> None:
    orders = [drawn(width)[1] for width in range(70, 30, -1)]
    seen = [names for place, names in enumerate(orders) if names and names != orders[place - 1]]
    assert seen == [
        ("lora_alpha",),
        ("learning_rate", "lora_alpha"),
        ("learning_rate", "lora_alpha", "note"),
    ]


def test_text_wraps_or_ends_in_an_ellipsis() -> None:
    lines, _ = drawn(65)
    whole = "\n".join(lines)
    assert "a long note" not in whole
    assert "a lon…" in whole
    assert whole.count("stopped:") == whole.count("underperforming") == 3
    assert "stopped: underperforming" not in whole


def test_no_rows_have_headings() -> None:
    lines, left_out = drawn(80, [])
    assert "trial" in "".join(lines)
    assert left_out == ()
