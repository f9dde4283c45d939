"""A run that people watch: read once for all of them, and only as far as it went on since."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cohort.runs.directory import RunDirectory
from cohort.runs.followed_steps import FollowedSteps
from cohort.runs.reader import RunReader
from cohort.runs.status import read_status
from cohort.service.dashboard.sweep_view import header_view, is_over, outcome_views, stay_views, trial_view

__all__ = ["FollowedRun", "RunMoment"]


@dataclass(frozen=True, kw_only=True)
class RunMoment:
    """A run at one moment, ready for a page.

    Attributes:
        generation: Counts how often the record was replaced by another or went back to a checkpoint; what pages hold
            of an earlier one is void.
        number: Counts the looks that found something, so that a viewer can say which one it has.
        position: The last place of the log that is in it.
        updated_at: When the record was last written, in seconds since 1970.
    """

    generation: str
    number: int
    position: int
    header: dict[str, Any]
    trials: dict[int, dict[str, Any]]
    outcomes: dict[str, Any]
    stays: list[list[float | None]]
    updated_at: float

    def as_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "number": self.number,
            "position": self.position,
            "updated_at": self.updated_at,
            **self.header,
            "outcomes": self.outcomes,
            "trials": list(self.trials.values()),
            "stays": self.stays,
        }


class FollowedRun:
    """Reads one run again and again. Calls of several threads take turns."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        self._steps = FollowedSteps()
        self._record: tuple[object, ...] | None = None
        self._generation = 0
        self._moment: RunMoment | None = None
        self._seen: tuple[object, ...] | None = None

    @property
    def last(self) -> RunMoment | None:
        """The run at the last look; None before the first."""
        return self._moment

    def look(self) -> RunMoment:
        """Return the run as it stands now; cheap where nothing was written since the last look.

        Raises:
            RunStateError: the run's database cannot be read.
        """
        with self._lock:
            seen = self._signs()
            if self._moment is None or seen != self._seen:
                self._moment = self._read()
                # signs from before the reading: what is written meanwhile is seen at the next look
                self._seen = seen
            return self._moment

    def _signs(self) -> tuple[object, ...]:
        """Return what changes when the run goes on, ends or is taken up again."""
        database = self.directory.database
        signs: list[object] = [self.directory.lock().holder()]
        for path in (database, database.with_name(f"{database.name}-wal")):
            try:
                found = os.stat(path)
            except FileNotFoundError:
                signs.append(None)
            else:
                # an empty log of SQLite says nothing: reading makes one
                signs.append((found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None)
        return tuple(signs)

    def _read(self) -> RunMoment:
        holder = self.directory.lock().holder()
        with RunReader.open(self.directory.database) as reader, reader.snapshot():
            facts, position = reader.facts(), reader.log.last_position()
            # a resume may drop the end of the log and write it again: its process is another one
            process = holder or (None if self._record is None else self._record[2])
            record = (facts.run_id, self._file_number(), process)
            is_other = self._record is not None and record != self._record
            if is_other or position < self._steps.position:
                self._steps = FollowedSteps()
                self._generation += 1
            self._record = record
            stays = stay_views(reader.log.residencies())
        status = read_status(self.directory, followed=self._steps)
        return RunMoment(
            generation=f"{os.getpid()}.{id(self)}.{self._generation}",
            number=0 if self._moment is None else self._moment.number + 1,
            position=position,
            header={"directory": str(self.directory.root), **header_view(status)},
            trials={
                entry.trial.trial_id: trial_view(entry, is_live=status.state == "running", is_over=is_over(status))
                for entry in status.trials
            },
            outcomes=outcome_views([entry.trial for entry in status.trials]),
            stays=stays,
            updated_at=self._updated_at(),
        )

    def _file_number(self) -> int:
        # a run that starts again from the beginning has none for a moment, and another one then
        try:
            return self.directory.database.stat().st_ino
        except FileNotFoundError:
            return 0

    def _updated_at(self) -> float:
        database = self.directory.database
        times = [0.0]
        for path in (database, database.with_name(f"{database.name}-wal")):
            # its last reader may take the log away at any moment
            with suppress(FileNotFoundError):
                times.append(path.stat().st_mtime)
        return max(times)
