"""Ctrl-C and SIGTERM as a request to stop at the next step boundary."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["stopping_gently"]


@contextlib.contextmanager
def stopping_gently(stop: threading.Event) -> Iterator[None]:
    """Within, Ctrl-C and SIGTERM ask the run to stop at the next step boundary; a second one stops it at once."""
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
