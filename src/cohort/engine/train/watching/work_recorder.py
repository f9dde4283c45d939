"""Writes what each of several GPUs does over time into the run's record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from cohort.core.rank_work import RankWork
from cohort.runs.store import RunStore

__all__ = ["WorkRecorder"]

# a long run has no more stretches than a picture of it can show: each lasts at least this share of the run so far
LEAST_SECONDS, SHARE = 1.0, 0.01


class WorkRecorder:
    """Records a stretch of the run's time at a time: how long each rank worked in it."""

    def __init__(
        self,
        store: RunStore,
        work: Callable[[], Sequence[RankWork]],
        *,
        windows: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Begin now.

        Args:
            work: Returns the totals of each rank, and nothing where there is one.
            windows: Returns the windows of a pipeline by what planned them; none where its stages do.
        """
        self._store, self._work, self._windows = store, work, windows
        self._windows_before = store.reader.facts().pipeline_windows or {}
        self._since, self._before = store.seconds, work()

    def took(self) -> None:
        """Record a stretch if it is long enough."""
        now = self._store.seconds
        if now - self._since >= max(LEAST_SECONDS, SHARE * now):
            self.flush()

    def flush(self) -> None:
        """Record what was done since the last stretch."""
        now, totals = self._store.seconds, self._work()
        if totals and now > self._since:
            done = [total.since(before) for total, before in zip(totals, self._before, strict=True)]
            self._store.add_rank_work(done, start_seconds=self._since, end_seconds=now)
        if windows := self._windows():
            total = Counter(self._windows_before) + Counter(windows)
            self._store.set_facts(pipeline_windows=dict(total))
        self._since, self._before = now, totals
