"""Progress of a queue: a live table on a terminal, plain lines otherwise; never both. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cohort.cli.queue_table import count_states, task_table
from cohort.core.clock import Clock, SystemClock
from cohort.core.units import format_duration
from cohort.task_queue.progress import QueueProgress, QueueWatcher

__all__ = ["LiveQueueWatcher", "PlainQueueWatcher", "queue_line", "watching_queue"]

# a log file stays readable, and a broken queue is noticed within a coffee
_PLAIN_INTERVAL_SECONDS = 30.0


def queue_line(progress: QueueProgress) -> str:
    """Return a queue at one moment in one line."""
    parts = [f"[{format_duration(progress.now_seconds)}] {count_states(progress)}"]
    busy = [f"{slot.device}: {slot.task or slot.state}" for slot in progress.slots]
    if busy:
        parts.append(", ".join(busy))
    if progress.end_seconds is not None:
        parts.append(f"about {format_duration(progress.end_seconds - progress.now_seconds)} left")
    return " | ".join(parts)


class PlainQueueWatcher:
    """One line now and then, and one for every note."""

    def __init__(self, stream: TextIO, *, clock: Clock | None = None) -> None:
        self._stream, self._clock = stream, clock or SystemClock()
        self._due = -1.0

    def update(self, progress: QueueProgress) -> None:
        """Print a line if the last one is old enough."""
        now = self._clock.monotonic()
        if now >= self._due:
            self._due = now + _PLAIN_INTERVAL_SECONDS
            print(queue_line(progress), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Print the line."""
        print(text, file=self._stream, flush=True)


class LiveQueueWatcher:
    """A table that is redrawn in place; notes scroll by above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def update(self, progress: QueueProgress) -> None:
        """Redraw."""
        self._live.update(Group(Text(queue_line(progress)), task_table(progress)))

    def note(self, text: str) -> None:
        """Print the line above the table."""
        self._live.console.print(Text(text))


@contextmanager
def watching_queue(stream: TextIO | None = None) -> Iterator[QueueWatcher]:
    """Yield what shows progress on ``stream`` (stderr when None): live on a terminal, plain lines otherwise."""
    stream = sys.stderr if stream is None else stream
    console = Console(file=stream, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainQueueWatcher(stream)
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield LiveQueueWatcher(live)
