"""Ends a process whose connection is closed while it waits, perhaps for ever, for something else."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["ConnectionWatch"]

# a process that was let go as it should be is on its way out: it reads what was sent before the end
_PATIENCE_SECONDS = 3.0
_CHECK_MILLISECONDS = 200


class ConnectionWatch:
    """Watches a connection from a thread; within it, the process ends soon after the other end is closed.

    A rank that is in a collective waits for the others of its group, and learns of nothing else. With NCCL it waits for
    ever for one that is gone.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        end_process: Callable[[int], object] = os._exit,
    ) -> None:
        """Watch the connection with this descriptor.

        Args:
            patience_seconds: What a process that is let go may take to leave the watch.
            end_process: Gets the exit status.
        """
        self._descriptor, self._patience, self._end_process = descriptor, patience_seconds, end_process
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="connection watch", daemon=True)

    def __enter__(self) -> Self:
        # a descriptor of its own: the number of a closed one may be another file's
        self._descriptor = os.dup(self._descriptor)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        os.close(self._descriptor)

    def _watch(self) -> None:
        poll = select.poll()
        # no system but Linux tells of a half-closed connection
        poll.register(self._descriptor, getattr(select, "POLLRDHUP", select.POLLHUP))
        while not self._is_over.is_set():
            if poll.poll(_CHECK_MILLISECONDS):
                if not self._is_over.wait(self._patience):
                    self._end_process(1)
                return
