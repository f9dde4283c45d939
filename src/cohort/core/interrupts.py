"""Lets Ctrl-C, SIGTERM and the end of a terminal (SIGHUP) stop a run at the next step boundary."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["stopping_gently"]


@contextlib.contextmanager
def stopping_gently(stop: threading.Event) -> Iterator[None]:
    """Inside the block, Ctrl-C, SIGTERM and SIGHUP set ``stop``; a second one interrupts at once.

    A process that ignores SIGHUP, as under ``nohup``, keeps ignoring it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_signum: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    # an ssh connection that breaks sends it; nohup asks to train on
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
