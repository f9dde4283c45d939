"""Lets Ctrl-C and SIGTERM stop a run at the next step boundary."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["stopping_gently"]


@contextlib.contextmanager
def stopping_gently(stop: threading.Event) -> Iterator[None]:
    """Inside the block, Ctrl-C and SIGTERM set ``stop``; a second one interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_signum: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
