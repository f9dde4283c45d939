"""Turns at the interpreter's lock are short inside, and as before behind the last block."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from cohort.core.process.short_turns import TURN_SECONDS, short_turns


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_until_the_last_block_ends() -> None:
    sys.setswitchinterval(0.004)
    first, second = short_turns(), short_turns()
    with first:
        assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
        second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(TURN_SECONDS)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_turns_that_are_shorter_stay() -> None:
    sys.setswitchinterval(1e-4)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(1e-4, abs=2e-6)
    assert sys.getswitchinterval() == pytest.approx(1e-4, abs=2e-6)


def test_an_error_puts_them_back() -> None:
    sys.setswitchinterval(0.004)
    with pytest.raises(RuntimeError), short_turns():
        raise RuntimeError
    assert sys.getswitchinterval() == pytest.approx(0.004)
