"""What several verbs print: a table of trials, names with values, and the console for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohort.runs.records import JsonValue, TrialStatus
from cohort.runs.results import RankedTrial
from cohort.runs.results_table import Medium, shown_columns

__all__ = [
    "STYLES",
    "constant_text",
    "format_value",
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


def format_value(value: JsonValue) -> str:
    """Return a hyperparameter or metric as short text: ``2e-04``, ``16``, ``true``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def varied_names(rows: Sequence[Mapping[str, JsonValue]]) -> list[str]:
    """Return the names whose values differ between rows, in the order of the first row."""
    if not rows:
        return []
    return [name for name in rows[0] if any(row.get(name) != rows[0][name] for row in rows)]


def parameter_text(parameters: Mapping[str, JsonValue], names: Sequence[str]) -> str:
    """Return ``learning_rate 2e-04, r 16``."""
    return ", ".join(f"{name} {format_value(parameters[name])}" for name in names if name in parameters)


def constant_text(rows: Sequence[Mapping[str, JsonValue]]) -> str | None:
    """Return the hyperparameters that a table of trials has no column for, with their values; None for none."""
    varied = varied_names(rows)
    constant = parameter_text(rows[0], [name for name in rows[0] if name not in varied]) if rows else ""
    return f"in every trial {constant}" if constant else None


def trial_table(ranked: Sequence[RankedTrial], *, metric_label: str) -> Table:
    """Return the trials, best first, with the hyperparameters that differ; print :func:`constant_text` below it."""
    rows = [entry.trial.parameters for entry in ranked]
    constant = {name for row in rows for name in row} - set(varied_names(rows))
    columns = shown_columns(ranked, medium=Medium.TERMINAL, metric_label=metric_label)
    columns = [column for column in columns if column.name not in constant]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.name, justify="left" if column.name == "status" else "right")
    for entry in ranked:
        cells = [column.text(entry) if column.text else format_value(column.value(entry)) for column in columns]
        # the status is the last column
        table.add_row(*cells[:-1], Text(cells[-1], style=STYLES[entry.trial.status]))
    return table


def wide_console(width: int) -> Console:
    """Return a console on stdout: as wide as the terminal, or ``width`` columns where it is none."""
    console = Console(highlight=False)
    # a pipe has no width of its own: without this, tables would be cut to 80 columns
    return console if console.is_terminal else Console(highlight=False, width=width, no_color=True)


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print names and values in two columns."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        console.print(Text(f"{name:<{width}}  {value}"), soft_wrap=True)
