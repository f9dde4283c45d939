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
    "exit_code_of",
    "interrupting",
    "interruption_behind",
    "name_of",
    "signal_of",
    "stopping_gently",
    "uninterrupted",
]

# what a shell reports of a process that ended by a signal, above the signal's number
_EXIT_SIGNAL = 128


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


def exit_code_of(error: KeyboardInterrupt) -> int:
    """Return the exit code of a process that a signal stopped: 130 for Ctrl-C, 143 for SIGTERM, as shells count."""
    return _EXIT_SIGNAL + signal_of(error)


def name_of(error: KeyboardInterrupt) -> str:
    """Return what people call the signal that raised ``error``."""
    number = signal_of(error)
    return "Ctrl-C" if number is signal.SIGINT else number.name


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
    with _handled(_Interrupts(), replaces=_is_of_a_new_process):
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
        error = Interrupted(number)
        # a second signal changes neither words nor code
        with uninterrupted():
            try:
                # whatever happens to the words, as where the terminal is gone
                with contextlib.suppress(Exception):
                    (tell or _tell)(error)
            finally:
                os._exit(exit_code_of(error))

    with _handled(handle, replaces=lambda found: _is_of_a_new_process(found) or isinstance(found, _Interrupts)):
        yield


def _tell(error: Interrupted) -> None:
    if sys.stderr is not None:
        print(f"interrupted by {name_of(error)} before anything was begun", file=sys.stderr, flush=True)


def _is_of_a_new_process(handler: object) -> bool:
    # SIGINT has Python's handler from the start, the others have the system's, which ends the process without a word
    return handler in (signal.SIG_DFL, signal.default_int_handler)


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
def _handled(handle: object, *, replaces: Callable[[object], bool] = lambda _: True) -> Iterator[None]:
    """Install a handler within; ``replaces``: only in the place of those of which it says so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        found = signal.getsignal(number)
        # an ssh connection that breaks sends SIGHUP; nohup asks to train on
        is_ignored = number == signal.SIGHUP and found is signal.SIG_IGN
        if not is_ignored and replaces(found):
            before[number] = signal.signal(number, handle)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
