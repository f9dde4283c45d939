"""The first Ctrl-C asks to stop, the second stops; afterwards signals do what they did before."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cohort.core.interrupts import stopping_gently


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_stops(number: signal.Signals) -> None:
    before, stop = signal.getsignal(number), threading.Event()
    with stopping_gently(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(60)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_thread_leaves_the_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def inside() -> None:
        with stopping_gently(threading.Event()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_process_under_nohup_goes_on_without_its_terminal() -> None:
    before, stop = signal.signal(signal.SIGHUP, signal.SIG_IGN), threading.Event()
    try:
        with stopping_gently(stop):
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
