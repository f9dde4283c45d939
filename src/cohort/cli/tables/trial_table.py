"""What several verbs print: a table of trials, names with values, and the console for both."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohort.cli.tables.fitted_table import TableColumn, fitted_table
from cohort.report.trial_columns import Medium, shown_columns
from cohort.runs.records import JsonValue
from cohort.runs.results.results import RankedTrial
from cohort.tuning.objective_metric import label_of
from cohort.tuning.trial_status import TrialStatus

__all__ = [
    "STYLES",
    "constant_text",
    "format_value",
    "left_out_text",
    "parameter_text",
    "print_facts",
    "trial_table",
    "varied_names",
    "wide_console",
]

# In the order of the live table: trials that train come first, so that they stay on the screen when there are more
# than it shows.
STYLES = {
    TrialStatus.RUNNING: "cyan",
    TrialStatus.COMPLETED: "green",
    TrialStatus.PARKED: "magenta",
    TrialStatus.STOPPED: "yellow",
    TrialStatus.FAILED: "red",
    TrialStatus.WAITING: "dim",
}

# hyperparameters and steps leave a narrow table from the last one on, after the places
_MOST_COLUMNS = 1000


def format_value(value: JsonValue) -> str:
    """Return a hyperparameter or metric as short text: ``2e-04``, ``16``, ``true``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def varied_names(rows: Sequence[Mapping[str, JsonValue]]) -> list[str]:
    """Return the names whose values differ between rows, in the order in which they first occur."""
    # a trial that a person added may have a value that no other names
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]


def parameter_text(parameters: Mapping[str, JsonValue], names: Sequence[str]) -> str:
    """Return ``learning_rate 2e-04, r 16``."""
    return ", ".join(f"{name} {format_value(parameters[name])}" for name in names if name in parameters)


def constant_text(rows: Sequence[Mapping[str, JsonValue]]) -> str | None:
    """Return the hyperparameters that a table of trials has no column for, with their values; None for none."""
    varied = varied_names(rows)
    constant = parameter_text(rows[0], [name for name in rows[0] if name not in varied]) if rows else ""
    return f"{constant} in every trial" if constant else None


def trial_table(
    ranked: Sequence[RankedTrial], *, metric_label: str, width: int, chosen: Sequence[str] = ()
) -> tuple[Table, tuple[str, ...]]:
    """Return the trials, best first, with the hyperparameters that differ, and the headings that ``width`` left out.

    A narrow table keeps ``chosen`` hyperparameters, those that are searched, longer than others. Print
    :func:`constant_text` below it.
    """
    rows = [entry.trial.parameters for entry in ranked]
    constant = {name for row in rows for name in row} - set(varied_names(rows))
    columns = shown_columns(ranked, medium=Medium.TERMINAL, metric_label=metric_label)
    columns = [column for column in columns if column.name not in constant]
    parameters = {name for row in rows for name in row}
    metrics = {label_of(name) for entry in ranked for name in entry.trial.best_metrics}
    cells = [
        [column.text(entry) if column.text else format_value(column.value(entry)) for column in columns]
        for entry in ranked
    ]
    fitting = [
        TableColumn(heading=column.name, leave_out=1)
        if column.name in metrics and column.name != metric_label
        else _fitting(
            column.name,
            # first what is not searched leaves, then the steps, then what is searched
            place=place + (0 if column.name in chosen else len(columns)) if column.name != "steps" else len(columns),
            is_parameter=column.name in parameters,
            cells=[row[place] for row in cells],
        )
        for place, column in enumerate(columns)
    ]
    # the status is the last column
    styled: list[Sequence[str | Text]] = [
        [*row[:-1], Text(row[-1], style=STYLES[entry.trial.status])] for row, entry in zip(cells, ranked, strict=True)
    ]
    return fitted_table(fitting, styled, width=width)


def _fitting(name: str, *, place: int, is_parameter: bool, cells: Sequence[str]) -> TableColumn:
    if name == "status":
        # 16: the reasons of our exit rules stay in one line
        return TableColumn(heading=name, justify="left", least_width=16, wraps=True)
    if name.startswith("on ") and name.endswith(" rows"):
        # 12 holds any number: an interval goes on in the next line, so that hyperparameters keep their columns
        return TableColumn(heading=name, least_width=12, wraps=True)
    if is_parameter:
        # of a kind the last one goes first; a word or a list may be shortened, a number may not
        is_text = any(cell[-1:].isalpha() or cell.endswith("]") for cell in cells)
        return TableColumn(heading=name, least_width=8 if is_text else 0, leave_out=_MOST_COLUMNS - place)
    # the trial's number and the metric always stay; the rows are in the order of their places
    return TableColumn(heading=name, leave_out={"place": 2, "steps": _MOST_COLUMNS - place}.get(name, 0))


def wide_console(width: int) -> Console:
    """Return a console on stdout: as wide as the terminal or ``COLUMNS`` say, or ``width`` columns without either."""
    console = Console(highlight=False)
    if console.is_terminal:
        return console
    # a pipe has no width of its own: without this, tables would be cut to 80 columns
    return Console(highlight=False, width=None if "COLUMNS" in os.environ else width, no_color=True)


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print names and values in two columns; on a terminal, long values go on below their beginning."""
    indent = max((len(name) for name in facts), default=0) + 2
    for name, value in facts.items():
        # paths and commands stay whole, so that they can be copied; a pipe gets one line for each name
        width = max(console.width - indent, 20) if console.is_terminal else sys.maxsize
        lines = [
            line
            for part in value.splitlines() or [""]
            for line in textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False) or [""]
        ]
        for number, line in enumerate(lines):
            console.print(Text(f"{'' if number else name:<{indent}}{line}"), soft_wrap=True)


def left_out_text(headings: Sequence[str], *, elsewhere: str) -> str:
    """Return that a table has no room for ``headings``, and where they are."""
    return f"{', '.join(headings)} (the terminal is too narrow; {elsewhere})"
