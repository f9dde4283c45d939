"""What tenants use while models answer: counted in memory, written to the store every second, never once a token."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping

from cohort.store.enums import UsageKind
from cohort.store.errors import QuotaExceededError, StoreError
from cohort.store.store import Store

__all__ = ["UsageBook"]

_log = logging.getLogger(__name__)
_WRITE_SECONDS = 1.0
# a tenant may be over its tokens of the day by what it uses in so long
_VERDICT_SECONDS = 2.0


class UsageBook:
    """Counts by project. Any thread may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counts: dict[str, dict[UsageKind, float]] = defaultdict(lambda: defaultdict(float))
        self._verdicts: dict[str, tuple[float, QuotaExceededError | None]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_forever, name="cohort-usage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and stop."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.write()

    def add(self, project_id: str, amounts: Mapping[UsageKind, float]) -> None:
        with self._lock:
            own = self._counts[project_id]
            for kind, amount in amounts.items():
                own[kind] += amount

    def require_tokens(self, project_id: str) -> None:
        """Check that a project has tokens left today.

        Raises:
            QuotaExceededError: it has none.
        """
        until, verdict = self._verdicts.get(project_id, (0.0, None))
        if time.monotonic() >= until:
            verdict = None
            try:
                self._store.project(project_id).usage.check_tokens()
            except QuotaExceededError as error:
                verdict = error
            self._verdicts[project_id] = (time.monotonic() + _VERDICT_SECONDS, verdict)
        if verdict is not None:
            raise verdict

    def write(self) -> None:
        """Write what was counted since the last time; what cannot be written is kept."""
        with self._lock:
            counts, self._counts = self._counts, defaultdict(lambda: defaultdict(float))
        for project_id, amounts in counts.items():
            try:
                self._store.project(project_id).usage.add(amounts)
            except StoreError as error:
                _log.warning("usage is written later: %s", error)
                self.add(project_id, amounts)

    def _write_forever(self) -> None:
        while not self._stop.wait(_WRITE_SECONDS):
            self.write()
