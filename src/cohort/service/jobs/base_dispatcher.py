"""Works a service's queue off on the base model of this process, which serves at the same time."""

from __future__ import annotations

from pathlib import Path

from cohort.engine.resident.resident_base import ResidentBase
from cohort.engine.resident.sweeps import Sweeps
from cohort.task_queue.resident_queue import ResidentQueue

__all__ = ["BaseDispatcher"]


class BaseDispatcher:
    """Trains jobs between requests; the process that serves is their worker."""

    def __init__(self, directory: Path, base: ResidentBase) -> None:
        """Start nothing yet; ``directory`` is the queue's."""
        self._directory, self._base = directory, base
        self._queue: ResidentQueue | None = None

    @property
    def is_alive(self) -> bool:
        return self._queue is not None

    def keep_alive(self) -> None:
        """Begin if nothing has begun."""
        if self._queue is None:
            self._queue = ResidentQueue(self._directory, Sweeps(self._base))
            self._queue.start()

    def stop(self, *, wait_seconds: float) -> bool:
        """Let every task save its state, however long that takes: the threads are those of this process."""
        del wait_seconds
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        return True
