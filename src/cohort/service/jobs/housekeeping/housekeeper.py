"""A node's part in housekeeping, next to running jobs: what is over is removed, and stored bytes are charged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import CohortError
from cohort.service.jobs.housekeeping.leftovers import (
    forget_ended_tasks,
    remove_folders_of_ended_jobs,
    remove_untouched,
)
from cohort.service.jobs.housekeeping.run_retention import remove_old_runs
from cohort.store.retention import Retention
from cohort.store.store import Store

__all__ = ["Housekeeper"]

_log = logging.getLogger(__name__)
# the store says whether it is due: one node does it, once an hour
_ASK_SECONDS = 300.0


class Housekeeper:
    """Asks from time to time whether there is something to do, and has it done by a thread. Use it from one thread."""

    def __init__(
        self,
        store: Store,
        *,
        owner: str,
        folder: Path,
        retention: Retention | None = None,
        scratch: Sequence[Path] = (),
        clock: Clock | None = None,
    ) -> None:
        """Keep house for a node.

        Args:
            folder: The node's, with its ``runs``, its ``jobs`` and its ``queue``.
            retention: How long what has ended is kept; None: for ever.
            scratch: Where requests have files as long as they last.
        """
        self._store, self._folder, self._retention = store, folder, retention or Retention()
        self._owner, self._scratch = owner, tuple(scratch)
        self._running: Future[None] | None = None
        self._clock = clock or SystemClock()
        self._next = self._clock.monotonic()

    def turn(self, threads: Executor) -> None:
        """Begin what is due; come again often. What takes longer than until the next time is not begun twice."""
        if self._running is not None and not self._running.done():
            return
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + _ASK_SECONDS
            self._running = threads.submit(self._work)

    def _work(self) -> None:
        # what one of them cannot do keeps none of the others
        for part in (self._keep_store, self._sweep_scratch, self._sweep_folders, self._sweep_queue, self._sweep_runs):
            try:
                part()
            except (CohortError, OSError) as error:
                _log.warning("housekeeping is done later: %s", error)
            except Exception:
                _log.exception("a part of housekeeping failed")

    def _keep_store(self) -> None:
        done = self._store.keep_house(self._owner, retention=self._retention)
        if done is not None and done.num_blobs:
            _log.info("%d blobs that nothing refers to any more were removed", done.num_blobs)
        if done is not None and done.num_jobs:
            _log.info("%d jobs whose time is over were forgotten", done.num_jobs)

    def _sweep_scratch(self) -> None:
        remove_untouched(self._scratch)

    def _sweep_folders(self) -> None:
        if count := remove_folders_of_ended_jobs(self._store, self._folder / "jobs"):
            _log.info("the rows of %d jobs that ended elsewhere were removed", count)

    def _sweep_queue(self) -> None:
        forget_ended_tasks(self._store, self._folder / "queue")

    def _sweep_runs(self) -> None:
        seconds = self._retention.run_seconds
        runs, queue = self._folder / "runs", self._folder / "queue"
        if count := remove_old_runs(self._store, runs=runs, queue=queue, seconds=seconds):
            _log.info("%d run directories whose time is over were removed", count)
