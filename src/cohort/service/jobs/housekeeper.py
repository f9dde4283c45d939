"""A node's part in housekeeping: blobs without an owner are removed and stored bytes charged, next to running jobs."""

from __future__ import annotations

import logging
from concurrent.futures import Executor

from cohort.core.clock import Clock, SystemClock
from cohort.store.errors import StoreError
from cohort.store.store import Store

__all__ = ["Housekeeper"]

_log = logging.getLogger(__name__)
# the store says whether it is due: one node does it, once an hour
_ASK_SECONDS = 300.0


class Housekeeper:
    """Asks from time to time whether there is something to do, and has it done by a thread. Use it from one thread."""

    def __init__(self, store: Store, *, owner: str, clock: Clock | None = None) -> None:
        self._store = store
        self._owner = owner
        self._clock = clock or SystemClock()
        self._next = self._clock.monotonic()

    def turn(self, threads: Executor) -> None:
        """Begin what is due; come again often."""
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + _ASK_SECONDS
            threads.submit(self._work)

    def _work(self) -> None:
        try:
            done = self._store.keep_house(self._owner)
        except StoreError as error:
            _log.warning("housekeeping is done later: %s", error)
        else:
            if done is not None and done.num_blobs:
                _log.info("%d blobs that nobody has any more were removed", done.num_blobs)
