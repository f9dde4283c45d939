"""A manual clock stands still until it is moved, and tells date and seconds alike."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cohort.core.clock import ManualClock, SystemClock


def test_sleeping_moves_the_clock() -> None:
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    clock.sleep(90)
    clock.advance(0.5)
    assert clock.monotonic() == 90.5
    assert clock.now() == datetime(2024, 1, 1, 0, 1, 30, 500_000, tzinfo=UTC)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_the_system_clock_tells_utc_and_never_goes_back() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    clock.sleep(0)
    assert clock.monotonic() >= first
    assert clock.now().tzinfo is UTC
