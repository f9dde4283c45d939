"""What ``--watch`` does until a run ends, or the user has seen enough."""

from __future__ import annotations

import os
import sys

import pytest

from cohort.cli.terminal.repeating import clear_terminal, repeat


def test_it_is_shown_until_nothing_more_will_come() -> None:
    slept: list[float] = []
    going_on = iter([True, True, False])
    repeat(lambda: next(going_on), every_seconds=3.0, sleep=slept.append)
    assert slept == [3.0, 3.0]
    assert next(going_on, None) is None


def test_an_interruption_ends_the_watching_quietly() -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    shown = iter([True, True])
    repeat(lambda: next(shown), every_seconds=3.0, sleep=interrupt)
    assert list(shown) == [True]


def test_a_reader_that_goes_away_ends_the_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    shown = iter([True, True])
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        repeat(lambda: next(shown), every_seconds=3.0, sleep=lambda _: os.close(reading))
    assert list(shown) == [True]


def test_a_process_without_output_watches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    clear_terminal()
    shown = iter([True, True])
    repeat(lambda: next(shown), every_seconds=3.0, sleep=lambda _: pytest.fail("waited for a reader"))
    assert list(shown) == [True]
