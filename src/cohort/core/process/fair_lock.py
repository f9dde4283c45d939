"""A lock that is given in the order in which it was asked for, so that a busy thread cannot keep another waiting."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

__all__ = ["FairLock"]


class FairLock:
    """A context manager. Python's own lock may go to the thread that has just let go of it, again and again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._is_held = False

    @property
    def is_held(self) -> bool:
        """Whether some thread has it now."""
        return self._is_held

    def __enter__(self) -> None:
        with self._guard:
            if not self._is_held:
                self._is_held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        # let go by the one before
        turn.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False
