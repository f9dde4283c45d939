"""Where a run's time goes: seconds by activity, each second counted once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cohort.core.clock import Clock
from cohort.runs.facts import Activity

__all__ = ["TimeSpent"]


class TimeSpent:
    """Adds up seconds until they are recorded. An activity inside another one interrupts it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[Activity, float] = {}
        self._totals: dict[Activity, float] = {}
        self._active: list[Activity] = []
        self._since = 0.0

    @contextmanager
    def on(self, activity: Activity) -> Iterator[None]:
        """Count the time within as spent on ``activity``."""
        # the outer activity ends here and goes on after: generation within an evaluation is counted once
        self._credit()
        self._active.append(activity)
        try:
            yield
        finally:
            self._credit()
            self._active.pop()

    def add(self, activity: Activity, seconds: float) -> None:
        """Count seconds that a session measured: a task's part of a step of several tasks."""
        # not through on(): several tasks share the seconds of one step
        for sums in (self._seconds, self._totals):
            sums[activity] = sums.get(activity, 0.0) + seconds

    def take(self) -> dict[Activity, float]:
        """Return the seconds since the last call and start again at zero."""
        self._credit()
        taken, self._seconds = self._seconds, {}
        return taken

    def total(self, activity: Activity) -> float:
        """Return all seconds spent on ``activity``, also those that were taken."""
        return self._totals.get(activity, 0.0)

    def _credit(self) -> None:
        now = self._clock.monotonic()
        if self._active:
            activity = self._active[-1]
            for seconds in (self._seconds, self._totals):
                seconds[activity] = seconds.get(activity, 0.0) + now - self._since
        self._since = now
