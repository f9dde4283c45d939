"""Progress while a verb works: a live table on a terminal, plain lines otherwise; never both. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TextIO, TypeVar

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cohort.cli.lost_terminal import outliving_terminal
from cohort.cli.trial_table import STYLES, constant_text, format_value, parameter_text, varied_names
from cohort.core.clock import Clock, SystemClock
from cohort.core.units import format_count, format_duration
from cohort.engine.train.progress import RunProgress, TrialProgress
from cohort.runs.records import TrialStatus

__all__ = ["RUN_VIEW", "LiveWatcher", "PlainWatcher", "View", "progress_line", "watching"]

P = TypeVar("P")
_BAR_WIDTH = 16
_SHOWN_TRIALS = 16


@dataclass(frozen=True, kw_only=True)
class View(Generic[P]):
    """How one kind of progress is shown.

    Attributes:
        line: Everything in one line.
        tables: What a terminal shows below that line.
        phase: A change of it is printed at once.
        interval_seconds: Time between plain lines.
    """

    line: Callable[[P], str]
    tables: Callable[[P], Sequence[Text | Table]]
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
        self._live.update(Group(Text(self._view.line(progress)), *self._view.tables(progress)))

    def note(self, text: str) -> None:
        self._live.console.print(Text(text))


@contextmanager
def watching(view: View[P], stream: TextIO | None = None) -> Iterator[PlainWatcher[P] | LiveWatcher[P]]:
    """Yield a watcher that shows progress on ``stream`` (stderr when None): live on a terminal, else plain lines."""
    stream = outliving_terminal(sys.stderr if stream is None else stream)
    console = Console(file=stream, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainWatcher(view, stream)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield LiveWatcher(view, live)


def progress_line(progress: RunProgress) -> str:
    """Return a run at one moment in one line."""
    parts = [f"[{format_duration(progress.elapsed_seconds)}] {progress.phase}"]
    if progress.trials:
        counts = [
            f"{progress.count(status)} {status.value}"
            for status in (TrialStatus.RUNNING, TrialStatus.PARKED, TrialStatus.WAITING, TrialStatus.COMPLETED)
            if progress.count(status)
        ]
        stopped = progress.stopped_by_reason
        if stopped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in stopped.items())
            counts.append(f"{sum(stopped.values())} stopped ({reasons})")
        parts.append(", ".join(counts))
    if (best := progress.best) is not None:
        parts.append(f"best {progress.metric_label} {format_value(best.best_value)} (trial {best.trial_id})")
    if progress.tokens_per_second is not None:
        parts.append(f"{format_count(progress.tokens_per_second)} tokens/s")
    if progress.recomputed_passes:
        parts.append(f"{format_count(progress.recomputed_passes)} passes recomputed")
    if progress.seconds_left is not None:
        parts.append(f"about {format_duration(progress.seconds_left)} left")
    return " | ".join(parts)


def _bar(trial: TrialProgress) -> Text:
    share = trial.steps_done / trial.planned_steps if trial.planned_steps else 0.0
    filled = round(_BAR_WIDTH * min(1.0, share))
    return Text.assemble(("━" * filled, STYLES[trial.status]), ("━" * (_BAR_WIDTH - filled), "dim"))


def _tables(progress: RunProgress) -> list[Text | Table]:
    if not progress.trials:
        return []
    parameters = [trial.parameters for trial in progress.trials]
    names, best, order = varied_names(parameters), progress.best, list(STYLES)
    ordered = sorted(
        progress.trials,
        key=lambda trial: (order.index(trial.status), trial.best_order or (float("inf"), trial.trial_id)),
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("trial", "", "train loss", progress.metric_label, "state", "configuration"):
        table.add_column(heading, no_wrap=True, justify="right" if heading.endswith("loss") else "left")
    for trial in ordered[:_SHOWN_TRIALS]:
        is_best = best is not None and trial.trial_id == best.trial_id
        state = trial.reason if trial.status is TrialStatus.STOPPED and trial.reason else trial.status.value
        table.add_row(
            f"{trial.trial_id}{' *' if is_best else ''}",
            _bar(trial),
            format_value(trial.train_loss),
            format_value(trial.best_value),
            Text(state, style=STYLES[trial.status]),
            parameter_text(trial.parameters, names),
        )
    hidden, same = len(ordered) - _SHOWN_TRIALS, constant_text(parameters)
    below = ([f"and {hidden} more"] if hidden > 0 else []) + ([same] if same is not None else [])
    return [table, *(Text(line, style="dim") for line in below)]


# 10 seconds: a log file stays readable, and a stuck run is noticed soon
RUN_VIEW: View[RunProgress] = View(
    line=progress_line, tables=_tables, phase=lambda progress: progress.phase, interval_seconds=10.0
)
