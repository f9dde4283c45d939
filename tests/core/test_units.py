"""Numbers for people."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from cohort.core.clock import ManualClock, SystemClock
from cohort.core.units import counted, format_bytes, format_bytes_above, format_count, format_duration, parse_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024**2, "10.0 MiB"),
        (140 * 1024**3, "140 GiB"),
        (5000 * 1024**5, "5000 PiB"),
    ],
)
def test_bytes(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize("num_bytes", [1, 999, 1000, 1025, 1_022_977, 10**7 + 1, 25 * 10**9, (24 << 30) + 1, 7 << 47])
def test_bytes_above_hold_what_they_are_of(num_bytes: int) -> None:
    held = parse_bytes(format_bytes_above(num_bytes))
    assert num_bytes <= held <= 1.02 * num_bytes + 1


def test_bytes_above_are_the_same_where_they_can_be() -> None:
    assert format_bytes_above(24 << 30) == "24.0 GiB"
    assert format_bytes_above((24 << 30) + 1) == "24.1 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.2s"),
        (9.97, "10s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (7620, "2h 07m"),
        (356400, "4d 03h"),
        (math.inf, "?"),
        (math.nan, "?"),
        (-3, "0s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (950, "950"),
        (9999, "9,999"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (999_950, "1.00M"),
        (1_800_000, "1.80M"),
        (999_950_000, "1.00B"),
        (7_240_000_000, "7.24B"),
    ],
)
def test_counts(count: float, text: str) -> None:
    assert format_count(count) == text


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(datetime(2025, 1, 1, tzinfo=UTC))
    assert clock.monotonic() == 0.0
    clock.sleep(90)
    assert clock.monotonic() == 90.0
    assert clock.now() == datetime(2025, 1, 1, 0, 1, 30, tzinfo=UTC)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_the_system_clock_agrees_with_the_machine() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    clock.sleep(0.001)
    assert clock.monotonic() > first
    assert clock.now().tzinfo is UTC


def test_one_has_no_plural() -> None:
    assert [counted(count, "trial") for count in (0, 1, 2, 1200)] == ["0 trials", "1 trial", "2 trials", "1,200 trials"]
