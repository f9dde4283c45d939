"""The runs of a folder by name: a name that a browser sends never becomes a path by itself."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from cohort.core.errors import CohortError
from cohort.runs.directory import QUEUE_DATABASE, RunDirectory

__all__ = ["RunsFolder", "UnknownRunError"]

# a sweep of sweeps is a folder of queues of runs; deeper than that lie caches and checkpoints
_DEPTH = 3
_SECONDS_KEPT = 2.0


class UnknownRunError(CohortError):
    """There is no run, queue or trial of this name in the folder."""


class RunsFolder:
    """Finds the runs and queues below a folder, or the one run that it is. Calls of several threads take turns."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._lock = threading.Lock()
        self._read_at = -_SECONDS_KEPT
        self._runs: dict[str, RunDirectory] = {}
        self._queues: dict[str, Path] = {}

    @property
    def root(self) -> Path:
        return self._root

    def runs(self) -> dict[str, RunDirectory]:
        """Return the runs that have begun, by their path in the folder; ``.`` is the folder itself."""
        self._look()
        return dict(self._runs)

    def queues(self) -> dict[str, Path]:
        """Return the directories of queues, by their path in the folder."""
        self._look()
        return dict(self._queues)

    def run(self, name: str) -> RunDirectory:
        """Return a run.

        Raises:
            UnknownRunError: there is none of this name.
        """
        found = self._runs.get(name) or self.runs().get(name)
        if found is None or not found.database.is_file():
            raise UnknownRunError(f"there is no run {name[:120]!r} in this folder (any more)")
        return found

    def queue(self, name: str) -> Path:
        """Return a queue's directory.

        Raises:
            UnknownRunError: there is none of this name.
        """
        found = self.queues().get(name)
        if found is None:
            raise UnknownRunError(f"there is no queue {name[:120]!r} in this folder (any more)")
        return found

    def _look(self) -> None:
        with self._lock:
            if time.monotonic() - self._read_at < _SECONDS_KEPT:
                return
            runs: dict[str, RunDirectory] = {}
            queues: dict[str, Path] = {}
            self._walk(self._root, depth=0, runs=runs, queues=queues)
            self._runs, self._queues, self._read_at = runs, queues, time.monotonic()

    def _walk(self, folder: Path, *, depth: int, runs: dict[str, RunDirectory], queues: dict[str, Path]) -> None:
        name = folder.relative_to(self._root).as_posix()
        directory = RunDirectory(folder)
        if directory.database.is_file():
            # what lies in a run is its own
            runs[name] = directory
            return
        if (folder / QUEUE_DATABASE).is_file():
            queues[name] = folder
        if depth == _DEPTH:
            return
        try:
            with os.scandir(folder) as entries:
                # links are left alone: they may lead out of the folder, or around in it
                below = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for entry in below:
            if not entry.startswith("."):
                self._walk(folder / entry, depth=depth + 1, runs=runs, queues=queues)
