"""The first Ctrl-C asks to stop, the second stops; afterwards signals do what they did before."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from cohort.core.process.interrupts import (
    Interrupted,
    StopRequest,
    interrupting,
    interruption_behind,
    signal_of,
    stopping_gently,
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_stops(number: signal.Signals) -> None:
    before, stop = signal.getsignal(number), StopRequest()
    with stopping_gently(stop):
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
    assert caught.value.is_at_once
    assert signal_of(stop.error()) is number


def test_the_signal_that_asked_first_is_the_one_that_is_told() -> None:
    stop = StopRequest()
    with stopping_gently(stop):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal_of(stop.error()) is signal.SIGTERM
    # asked by something else than a signal
    stop = StopRequest()
    stop.set()
    assert signal_of(stop.error()) is signal.SIGINT
    assert signal_of(KeyboardInterrupt()) is signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_outside_of_training_a_signal_interrupts_and_a_second_one_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interrupting():
        with pytest.raises(Interrupted) as first:
            signal.raise_signal(number)
        with pytest.raises(Interrupted) as second:
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
    assert (first.value.number, first.value.is_at_once) == (number, False)
    assert (second.value.number, second.value.is_at_once) == (number, True)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_signal_that_is_ignored_or_handled_stays_so(handler: Callable[..., None]) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with interrupting():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_thread_leaves_the_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def inside() -> None:
        with stopping_gently(StopRequest()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_process_under_nohup_goes_on_without_its_terminal() -> None:
    before, stop = signal.signal(signal.SIGHUP, signal.SIG_IGN), StopRequest()
    try:
        with stopping_gently(stop):
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interruption_is_found_behind_what_was_made_of_it() -> None:
    interrupted = Interrupted(signal.SIGTERM)
    wrapped, twice, other = RuntimeError("of a class"), ImportError("of a module"), ValueError("while it was handled")
    wrapped.__cause__, twice.__cause__, other.__context__ = interrupted, wrapped, interrupted
    assert interruption_behind(wrapped) is interrupted
    assert interruption_behind(twice) is interrupted
    assert interruption_behind(other) is None
    assert interruption_behind(interrupted) is None


@pytest.mark.parametrize("outer", ["interrupting()", "nullcontext()"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_imports_are_not_interrupted_but_ended(number: signal.Signals, outer: str) -> None:
    program = f"""
import signal
from contextlib import nullcontext
from cohort.core.process.interrupts import ending_at_once, interrupting

def tell(error):
    signal.raise_signal(signal.SIGTERM)
    print(error.number.name, flush=True)
    raise OSError("the terminal is gone")

with {outer}:
    with ending_at_once():
        pass
    with ending_at_once(tell):
        try:
            signal.raise_signal({int(number)})
        finally:
            print("raised", flush=True)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (128 + number, f"{number.name}\n", "")


@pytest.mark.parametrize("stderr", ["sys.stderr", "None", "open('/dev/full', 'w')"])
def test_words_that_cannot_be_written_change_no_code(stderr: str) -> None:
    program = f"""
import signal, sys
from cohort.core.process.interrupts import ending_at_once

sys.stderr = {stderr}
with ending_at_once():
    signal.raise_signal(signal.SIGHUP)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = "interrupted by SIGHUP before anything was begun\n" * (stderr == "sys.stderr")
    assert (found.returncode, found.stderr) == (129, said)


def test_what_is_ignored_does_not_end_imports_either() -> None:
    program = """
import signal
from cohort.core.process.interrupts import ending_at_once

signal.signal(signal.SIGINT, signal.SIG_IGN)
with ending_at_once():
    signal.raise_signal(signal.SIGINT)
print("imported")
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "imported\n")
