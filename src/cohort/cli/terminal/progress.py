"""Progress while a verb works: a live table on a terminal, plain lines otherwise; never both. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TextIO, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cohort.cli.tables.fitted_table import TableColumn, fitted_table
from cohort.cli.tables.trial_table import STYLES, constant_text, format_value, parameter_text, varied_names
from cohort.core.clock import Clock, SystemClock
from cohort.core.units import format_count, format_duration
from cohort.engine.train.watching.progress import RunProgress
from cohort.runs.records import TrialRecord
from cohort.tuning.objective_metric import LOSS
from cohort.tuning.trial_status import TrialStatus

__all__ = ["RUN_VIEW", "LiveWatcher", "PlainWatcher", "View", "progress_line", "watching"]

P = TypeVar("P")
_BAR_WIDTH = 16
_BAR_ENDS = {
    TrialStatus.RUNNING: "╸",
    TrialStatus.COMPLETED: "●",
    TrialStatus.PARKED: "║",
    TrialStatus.STOPPED: "×",
    TrialStatus.FAILED: "!",
}
_SHOWN_TRIALS, _LEAST_SHOWN = 16, 3
# the line above a table, which may wrap twice, its heading and rule, and the lines below it
_OTHER_LINES = 11


@dataclass(frozen=True, kw_only=True)
class View(Generic[P]):
    """How one kind of progress is shown.

    Attributes:
        line: Everything in one line.
        tables: What is shown below that line, by the columns and lines of the terminal.
        phase: A change of it is printed at once.
        interval_seconds: Time between plain lines.
    """

    line: Callable[[P], str]
    tables: Callable[[P, int, int], Sequence[Text | Table]]
    phase: Callable[[P], str]
    interval_seconds: float


class PlainWatcher(Generic[P]):
    """Prints one line every few seconds, and one for every note."""

    def __init__(self, view: View[P], stream: TextIO, *, clock: Clock | None = None) -> None:
        self._view, self._stream, self._clock = view, stream, clock or SystemClock()
        self._due = -1.0
        self._phase = ""

    def update(self, progress: P) -> None:
        now, phase = self._clock.monotonic(), self._view.phase(progress)
        if phase != self._phase or now >= self._due:
            self._phase, self._due = phase, now + self._view.interval_seconds
            self.note(self._view.line(progress))

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveWatcher(Generic[P]):
    """Redraws a table in place; notes scroll by above it."""

    def __init__(self, view: View[P], live: Live) -> None:
        self._view, self._live = view, live

    def update(self, progress: P) -> None:
        size = self._live.console.size
        tables = self._view.tables(progress, size.width, size.height)
        self._live.update(Group(Text(self._view.line(progress)), *tables))

    def note(self, text: str) -> None:
        self._live.console.print(Text(text))


@contextmanager
def watching(view: View[P], stream: TextIO | None = None) -> Iterator[PlainWatcher[P] | LiveWatcher[P]]:
    """Yield a watcher that shows progress on ``stream`` (stderr when None): live on a terminal, else plain lines."""
    stream = sys.stderr if stream is None else stream
    console = Console(file=stream, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainWatcher(view, stream)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield LiveWatcher(view, live)


def _ranks_text(progress: RunProgress) -> str:
    """Return how much of the last seconds each of several GPUs worked; empty where there is one."""
    shares = [f"{100 * rank.busy_share:.0f}" for rank in progress.ranks if rank.busy_share is not None]
    trials = [str(rank.num_trials) for rank in progress.ranks if rank.num_trials is not None]
    if not shares:
        return ""
    return f"busy {', '.join(shares)} %" + (f" ({' + '.join(trials)} trials)" if trials else "")


def progress_line(progress: RunProgress) -> str:
    """Return a run at one moment in one line."""
    parts = [f"[{format_duration(progress.elapsed_seconds)}] {progress.phase}"]
    if progress.trials:
        counts = [
            f"{progress.count(status)} {status.label}"
            for status in (TrialStatus.RUNNING, TrialStatus.PARKED, TrialStatus.WAITING, TrialStatus.COMPLETED)
            if progress.count(status)
        ]
        stopped = progress.stopped_by_reason
        if stopped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in stopped.items())
            counts.append(f"{sum(stopped.values())} stopped ({reasons})")
        parts.append(", ".join(counts))
    if (best := progress.best) is not None:
        # trials of equal score differ in the loss they reach it with
        loss = "" if progress.metric_label == LOSS.label else f", loss {format_value(best.best_loss)}"
        parts.append(f"best {progress.metric_label} {format_value(best.best_value)}{loss} (trial {best.trial_id})")
    if progress.tokens_per_second is not None:
        parts.append(f"{format_count(progress.tokens_per_second)} tokens/s")
    if busy := _ranks_text(progress):
        parts.append(busy)
    if progress.recomputed_passes:
        parts.append(f"{format_count(progress.recomputed_passes)} passes recomputed")
    if progress.seconds_left is not None:
        parts.append(f"about {format_duration(progress.seconds_left)} left")
    return " | ".join(parts)


def _bar(trial: TrialRecord, *, width: int) -> Text:
    share = trial.steps_done / trial.planned_steps if trial.planned_steps else 0.0
    filled = round(width * min(1.0, share))
    end = _BAR_ENDS.get(trial.status, "")
    # a bar's end says how the trial stands, and dots what it has not done: colours alone do not print everywhere
    done = ("━" * max(filled - len(end), 0) + end) if end else "━" * filled
    return Text.assemble((done, STYLES[trial.status]), ("·" * (width - len(done)), "dim"))


def _tables(progress: RunProgress, width: int, height: int) -> list[Text | Table]:
    if not progress.trials:
        return []
    parameters = [trial.parameters for trial in progress.trials]
    names, order = varied_names(parameters), list(STYLES)
    ordered = sorted(
        progress.trials,
        key=lambda trial: (order.index(trial.status), trial.order(progress.metric) or (float("inf"), trial.trial_id)),
    )
    # what does not fit would push the lines below the table off the screen
    shown = ordered[: min(_SHOWN_TRIALS, max(_LEAST_SHOWN, height - _OTHER_LINES))]
    table, left_out = _trial_table(shown, progress, names=names, is_named=True, width=width)
    below = [f"and {len(ordered) - len(shown)} more"] if len(ordered) > len(shown) else []
    # the names of hyperparameters once below the table, where each row has no room for them
    if left_out:
        table, left_out = _trial_table(shown, progress, names=names, is_named=False, width=width)
        if names and _CONFIGURATION not in left_out:
            below.append(f"{_CONFIGURATION}: {', '.join(names)}")
    if (same := constant_text(parameters)) is not None:
        below.append(same)
    return [table, *(Text(line, style="dim") for line in below)]


_CONFIGURATION = "configuration"


def _trial_table(
    trials: Sequence[TrialRecord], progress: RunProgress, *, names: Sequence[str], is_named: bool, width: int
) -> tuple[Table, tuple[str, ...]]:
    best, has_loss = progress.best, progress.metric_label != LOSS.label
    rows: list[Sequence[str | Text]] = []
    for trial in trials:
        is_best = best is not None and trial.trial_id == best.trial_id
        values = ", ".join(format_value(trial.parameters.get(name)) for name in names)
        rows.append(
            [
                f"{trial.trial_id}{' *' if is_best else ''}",
                _bar(trial, width=_BAR_WIDTH if is_named else _BAR_WIDTH // 2),
                format_value(trial.last_loss),
                format_value(trial.best_value),
                *([format_value(trial.best_loss)] if has_loss else []),
                Text(trial.state, style=STYLES[trial.status]),
                parameter_text(trial.parameters, names) if is_named else values,
            ]
        )
    columns = [
        TableColumn(heading="trial", justify="left"),
        TableColumn(heading="", justify="left", leave_out=1),
        TableColumn(heading="train loss", leave_out=2),
        TableColumn(heading=progress.metric_label),
        *([TableColumn(heading="loss")] if has_loss else []),
        # 16: the reasons of our exit rules stay in one line
        TableColumn(heading="state", justify="left", least_width=16),
        TableColumn(heading=_CONFIGURATION, justify="left", leave_out=3),
    ]
    # with one configuration there is no name, and below the table stand all values
    return fitted_table(columns if names else columns[:-1], rows, width=width)


# 10 seconds: a log file stays readable, and a stuck run is noticed soon
RUN_VIEW: View[RunProgress] = View(
    line=progress_line, tables=_tables, phase=lambda progress: progress.phase, interval_seconds=10.0
)
