"""Ctrl-C, SIGTERM and the end of a terminal (SIGHUP) do the same: a run stops, with what it has reached saved.

While a run trains they are a request to stop at the next step boundary. Elsewhere they interrupt; within imports they
end the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

__all__ = [
    "Interrupted",
    "StopRequest",
    "ending_at_once",
    "interrupting",
    "interruption_behind",
    "signal_of",
    "stopping_gently",
    "uninterrupted",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# SIGINT has Python's handler from the start, the others have the system's, which ends the process without a word
_OF_A_NEW_PROCESS = (signal.SIG_DFL, signal.default_int_handler)


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


def interruption_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interruption that another error names as its cause, as Python does with some; None without one."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__
    return cause


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


class _Interrupts:
    """A handler that raises each signal."""

    def __init__(self) -> None:
        self._has_come = False

    def __call__(self, number: int, _frame: object) -> NoReturn:
        is_at_once, self._has_come = self._has_come, True
        raise Interrupted(number, is_at_once=is_at_once)


@contextlib.contextmanager
def interrupting() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP interrupt as Ctrl-C does, and each of the three tells which it was.

    Where one is ignored or handled already, it stays so.
    """
    with _handled(_Interrupts(), replaces=_OF_A_NEW_PROCESS):
        yield


@contextlib.contextmanager
def ending_at_once(tell: Callable[[Interrupted], None] | None = None) -> Iterator[None]:
    """Inside the block, Ctrl-C, SIGTERM and SIGHUP end the process, with their exit codes: for imports.

    An import may wrap what is raised in it, lose it, or end the process by the system's abort where a library's own
    code does not expect it. Where a signal is ignored, or handled by others, it stays so.

    Args:
        tell: Says what was interrupted, and ends what the process has begun; None: a line on stderr.
    """

    def handle(number: int, _frame: object) -> None:
        # no second one while this one is told
        with uninterrupted():
            try:
                # whatever happens to the words, as where the terminal is gone
                with contextlib.suppress(Exception):
                    (tell or _tell)(Interrupted(number))
            finally:
                os._exit(128 + number)

    with _handled(handle, replaces=_OF_A_NEW_PROCESS, replaces_interrupts=True):
        yield


def _tell(error: Interrupted) -> None:
    name = "Ctrl-C" if error.number is signal.SIGINT else error.number.name
    if sys.stderr is not None:
        print(f"interrupted by {name} before anything was begun", file=sys.stderr, flush=True)


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
def _handled(
    handle: object, *, replaces: tuple[object, ...] | None = None, replaces_interrupts: bool = False
) -> Iterator[None]:
    """Install a handler within; ``replaces``: only in the place of these, or of :class:`_Interrupts` if that is set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in _SIGNALS:
        found = signal.getsignal(number)
        # an ssh connection that breaks sends SIGHUP; nohup asks to train on
        is_ignored = number == signal.SIGHUP and found is signal.SIG_IGN
        is_replaced = replaces is None or found in replaces or (replaces_interrupts and isinstance(found, _Interrupts))
        if not is_ignored and is_replaced:
            before[number] = signal.signal(number, handle)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
