"""Workers that serve one queue after the other, so that none of them waits for their start."""

from __future__ import annotations

from cohort.machine.cluster.local import LocalPool
from cohort.machine.cluster.worker_pool import PoolEvent, WorkerMessage
from cohort.task_queue.workers.messages import Ready, as_message

__all__ = ["KeptWorkers"]


class KeptWorkers(LocalPool):
    """A pool that a queue's end does not end: for the next queue a worker that is there is ready at once."""

    _ready: tuple[PoolEvent, ...] = ()

    def start(self, slot_id: int) -> None:
        """Begin a worker where there is none."""
        process_id = self.process_id(slot_id)
        if process_id is None:
            super().start(slot_id)
        else:
            message = as_message(Ready(process_id=process_id))
            self._ready = (*self._ready, WorkerMessage(slot_id=slot_id, message=message))

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        """Return what happened; what workers still said of the queue before comes first."""
        ready, self._ready = self._ready, ()
        return [*super().wait(0.0 if ready else timeout_seconds), *ready]

    def close(self) -> None:
        """Keep the workers."""

    def end(self) -> None:
        """End them."""
        super().close()
