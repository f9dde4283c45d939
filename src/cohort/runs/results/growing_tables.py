"""results.csv and metrics.jsonl while a run trains: they exist from its first step and grow with it."""

from __future__ import annotations

from cohort.core.clock import Clock
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.results.metrics_file import MetricsFile
from cohort.runs.results.results import read_results
from cohort.runs.results.results_table import write_results_csv

__all__ = ["GrowingTables"]

# soon enough for a person who looks on or a script that plots
_LEAST_SECONDS = 5.0
# the table of a large run takes longer, and then comes less often
_SHARE = 0.003


class GrowingTables:
    """Keeps the tables of a run up to date.

    They are made from the record, so that a resume, which goes back to a checkpoint, repeats no row in them.
    """

    def __init__(self, directory: RunDirectory, *, reader: RunReader, clock: Clock) -> None:
        """Write both tables as the record stands.

        Raises:
            StorageFullError: the disk is full.
        """
        self._path, self._reader, self._clock = directory.results_csv, reader, clock
        self._metrics = MetricsFile(directory.metrics_jsonl, reader=reader)
        self._metrics.write()
        self._write_results(is_flushed=True)
        self._written_at, self._pause = clock.monotonic(), _LEAST_SECONDS

    def update(self, *, now: bool = False) -> None:
        """Write what is new if the last time is long enough ago, or ``now``.

        Raises:
            StorageFullError: the disk is full.
        """
        began = self._clock.monotonic()
        if not now and began - self._written_at < self._pause:
            return
        self._metrics.append()
        # the record can make them again: training does not wait for the disk
        self._write_results(is_flushed=now)
        self._written_at = self._clock.monotonic()
        self._pause = max(_LEAST_SECONDS, (self._written_at - began) / _SHARE)

    def _write_results(self, *, is_flushed: bool) -> None:
        write_results_csv(self._path, results=read_results(self._reader), is_flushed=is_flushed)
