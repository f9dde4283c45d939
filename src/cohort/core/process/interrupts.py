"""Ctrl-C, SIGTERM and the end of a terminal (SIGHUP) do the same: a run stops, with what it has reached saved.

While a run trains they are a request to stop at the next step boundary; anywhere else they interrupt.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["Interrupted", "StopRequest", "interrupting", "signal_of", "stopping_gently", "uninterrupted"]


class Interrupted(KeyboardInterrupt):
    """What a signal raises: a KeyboardInterrupt that knows its signal.

    Attributes:
        number: The signal.
        is_at_once: Whether it came while an earlier one was being obeyed, so that something may not be saved.
    """

    def __init__(self, number: int, *, is_at_once: bool = False) -> None:
        self.number, self.is_at_once = signal.Signals(number), is_at_once
        super().__init__(self.number.name)


def signal_of(error: KeyboardInterrupt) -> signal.Signals:
    """Return the signal that raised ``error``; Python's own handler is that of SIGINT."""
    return error.number if isinstance(error, Interrupted) else signal.SIGINT


class StopRequest:
    """Whether a run was asked to stop, and by which signal if by one.

    Without a lock: a signal may be handled in the middle of what another one, or the same thread, sets.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._number: int | None = None

    def set(self, number: int | None = None) -> None:
        """Ask to stop; ``number``: the signal that asks."""
        # the first one is what a supervisor waits for
        self._number = number if self._number is None else self._number
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether anyone has asked to stop."""
        return self._is_set

    def error(self) -> KeyboardInterrupt:
        """Return what a run raises once it has stopped."""
        return Interrupted(signal.SIGINT if self._number is None else self._number)


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP interrupt as Ctrl-C does, and each of the three tells which it was.

    Where one is ignored or handled already, it stays so.
    """
    has_come = False

    def handle(number: int, _frame: object) -> None:
        nonlocal has_come
        is_at_once, has_come = has_come, True
        raise Interrupted(number, is_at_once=is_at_once)

    # SIGINT has Python's handler from the start, the others have the system's, which ends the process without a word
    with _handled(handle, replaces=(signal.SIG_DFL, signal.default_int_handler)):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside the block, Ctrl-C, SIGTERM and SIGHUP do nothing: for what takes a moment before a process ends."""
    with _handled(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def stopping_gently(stop: StopRequest) -> Iterator[None]:
    """Inside the block, Ctrl-C, SIGTERM and SIGHUP set ``stop``; a second one interrupts at once.

    A process that ignores SIGHUP, as under ``nohup``, keeps ignoring it.
    """

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            raise Interrupted(number, is_at_once=True)
        stop.set(number)

    with _handled(handle):
        yield


@contextlib.contextmanager
def _handled(handle: object, *, replaces: tuple[object, ...] | None = None) -> Iterator[None]:
    """Install a handler within; ``replaces``: only in the place of these."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        found = signal.getsignal(number)
        # an ssh connection that breaks sends SIGHUP; nohup asks to train on
        is_ignored = number == signal.SIGHUP and found is signal.SIG_IGN
        if not is_ignored and (replaces is None or found in replaces):
            before[number] = signal.signal(number, handle)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
