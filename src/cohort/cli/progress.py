"""Progress while a run goes on: a live table on a terminal, plain lines otherwise; never both. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cohort.cli.trial_table import STYLES, constant_text, format_value, parameter_text, varied_names
from cohort.core.clock import Clock, SystemClock
from cohort.core.units import format_count, format_duration
from cohort.engine.train.progress import ProgressWatcher, RunProgress, TrialProgress
from cohort.runs.records import TrialStatus

__all__ = ["LiveWatcher", "PlainWatcher", "progress_line", "watching"]

# a log file stays readable, and a broken run is noticed within a coffee
_PLAIN_INTERVAL_SECONDS = 10.0
_BAR_WIDTH = 16
_SHOWN_TRIALS = 16


def progress_line(progress: RunProgress) -> str:
    """Return a run at one moment in one line."""
    parts = [progress.phase]
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


class PlainWatcher:
    """One line every few seconds, and one for every note."""

    def __init__(self, stream: TextIO, *, clock: Clock | None = None) -> None:
        self._stream = stream
        self._clock = clock or SystemClock()
        self._due = -1.0
        self._phase = ""

    def update(self, progress: RunProgress) -> None:
        """Print a line if the last one is old enough, or something new begins."""
        now = self._clock.monotonic()
        if progress.phase == self._phase and now < self._due:
            return
        self._phase, self._due = progress.phase, now + _PLAIN_INTERVAL_SECONDS
        print(f"[{format_duration(progress.elapsed_seconds)}] {progress_line(progress)}", file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, file=self._stream, flush=True)


def _bar(trial: TrialProgress) -> Text:
    share = trial.steps_done / trial.planned_steps if trial.planned_steps else 0.0
    filled = round(_BAR_WIDTH * min(1.0, share))
    style = STYLES[trial.status]
    return Text.assemble(("━" * filled, style), ("━" * (_BAR_WIDTH - filled), "dim"))


_ORDER = (
    TrialStatus.RUNNING,
    TrialStatus.COMPLETED,
    TrialStatus.PARKED,
    TrialStatus.STOPPED,
    TrialStatus.FAILED,
    TrialStatus.WAITING,
)


def _live_table(progress: RunProgress) -> Table:
    names = varied_names([trial.parameters for trial in progress.trials])
    best = progress.best
    sign = -1.0 if progress.maximize else 1.0
    worst = float("inf")
    ordered = sorted(
        progress.trials,
        key=lambda trial: (
            _ORDER.index(trial.status),
            worst if trial.best_value is None else sign * trial.best_value,
            trial.trial_id,
        ),
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
    return table


class LiveWatcher:
    """A table that is redrawn in place; notes scroll by above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def update(self, progress: RunProgress) -> None:
        """Redraw."""
        head = Text(f"{format_duration(progress.elapsed_seconds)}  {progress_line(progress)}")
        parts: list[Text | Table] = [head]
        if progress.trials:
            parts.append(_live_table(progress))
            if (hidden := len(progress.trials) - _SHOWN_TRIALS) > 0:
                parts.append(Text(f"and {hidden} more", style="dim"))
            if (same := constant_text([trial.parameters for trial in progress.trials])) is not None:
                parts.append(Text(same, style="dim"))
        self._live.update(Group(*parts))

    def note(self, text: str) -> None:
        """Print the line above the table."""
        self._live.console.print(Text(text))


@contextmanager
def watching(stream: TextIO | None = None) -> Iterator[ProgressWatcher]:
    """Yield what shows progress on ``stream`` (stderr when None): live on a terminal, plain lines otherwise."""
    stream = sys.stderr if stream is None else stream
    console = Console(file=stream, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainWatcher(stream)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield LiveWatcher(live)
