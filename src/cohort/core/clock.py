"""Time as an argument: what needs the time takes a clock, so that tests and simulations can set it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """The source of time."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; never goes back."""
        ...

    def now(self) -> datetime:
        """Return the date and time in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is moved; ``sleep`` moves it."""

    def __init__(self, start: datetime = datetime(2000, 1, 1, tzinfo=UTC)) -> None:
        self._start = start.timestamp()
        self._elapsed = 0.0

    def advance(self, seconds: float) -> None:
        """Move the time forward.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock never goes back, but seconds is {seconds}")
        self._elapsed += seconds

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._start + self._elapsed, tz=UTC)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)
