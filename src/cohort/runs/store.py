"""The writer of a run's database: what happened and what was decided, in the order it happened.

A log position numbers every trial, event and decision. Appending is transactional and idempotent: an entry that is
there already, by trial, step and kind, stays as it is, so that a resumed run may send its last steps again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from cohort.core.clock import Clock, SystemClock
from cohort.core.events import TrialEvent
from cohort.core.rank_work import RankWork
from cohort.runs.database import Database, database_errors_named, open_database
from cohort.runs.fact_groups import InputFacts, MachineFacts, MemoryFacts, PassFacts, RunPlaces, SizeFacts, TaskFacts
from cohort.runs.facts import Activity, RunState, stored_facts
from cohort.runs.log import LOG_TABLES
from cohort.runs.packing_records import PackingRecord
from cohort.runs.reader import RunReader
from cohort.runs.records import CheckpointRecord, LoggedDecision, LoggedEvent, TrialRecord
from cohort.runs.results.comparison import Comparison
from cohort.runs.schema import RANK_WORK, create_tables
from cohort.tuning.decisions import Decision
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric, TieRule

__all__ = ["FactUpdates", "RunStore"]


# Python has no type for "some fields of a dataclass"; a test holds these fields and those of RunFacts equal
class FactUpdates(TypedDict, total=False):
    """Facts to set, by field of :class:`RunFacts`; a group replaces the whole group, seconds only those they name."""

    task_name: str
    run_id: str
    metric: str
    metric_maximize: bool
    metric_ties: TieRule
    state: RunState
    best_trial_id: int | None
    best_files: tuple[str, ...] | None
    finals: Comparison | None
    test: Comparison | None
    base_metrics: Mapping[str, float]
    base_rows: Mapping[str, Sequence[float]]
    default_metrics: Mapping[str, float] | None
    packing_chosen: tuple[PackingRecord, ...]
    pipeline_windows: Mapping[str, int]
    search_ended: str | None
    search_ended_at: int | None
    are_results_written: bool
    tracker_failures: Mapping[str, str]
    run_seconds: float
    seconds: Mapping[Activity, float]
    places: RunPlaces
    task: TaskFacts
    machine: MachineFacts
    inputs: InputFacts
    sizes: SizeFacts
    memory: MemoryFacts
    passes: PassFacts


class RunStore:
    """Writes one run. Only the process that holds the run directory's lock may have one.

    Everything is committed when the method that wrote it returns. Run time (``seconds``) goes on from where the last
    process left it and never counts the time in between.

    Attributes:
        reader: Reads what was written.
    """

    @classmethod
    def create(cls, path: Path, *, metric: ObjectiveMetric = LOSS, clock: Clock | None = None) -> RunStore:
        """Create the database of a new run.

        Raises:
            RunStateError: there is one already.
            StorageFullError: the disk is full.
        """
        facts: FactUpdates = {"metric": metric.name, "metric_maximize": metric.maximize, "metric_ties": metric.ties}
        create_tables(path, facts=stored_facts(facts))
        return cls(open_database(path, read_only=False), clock=clock or SystemClock())

    @classmethod
    def resume(cls, path: Path, *, clock: Clock | None = None) -> RunStore:
        """Open the database of a run that is to continue.

        Raises:
            RunStateError: the file is absent, damaged, not a run's, or of another version.
        """
        store = cls(open_database(path, read_only=False), clock=clock or SystemClock())
        with store._database.transaction():
            # a killed process left its stays in slots open: they end where the log ends
            store._execute(
                "UPDATE residencies SET stop_position = max(?, start_position), stop_seconds = max(?, start_seconds) "
                "WHERE stop_position IS NULL",
                (store._position, store._seconds_before),
            )
        return store

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self.reader = RunReader(database)
        self._database, self._execute, self._clock = database, database.connection.execute, clock
        self._seconds_before = self.reader.run_seconds()
        self._opened_at = clock.monotonic()
        self._position = self.reader.log.last_position()

    @property
    def path(self) -> Path:
        return self._database.path

    @property
    def seconds(self) -> float:
        """Run time now: the seconds that processes of this run have lived."""
        return self._seconds_before + self._clock.monotonic() - self._opened_at

    @property
    def position(self) -> int:
        """The last position given out; 0 when there was none."""
        return self._position

    def add_trials(self, trials: Sequence[TrialRecord]) -> int:
        """Record proposed trials, each at a position of its own; return the last position.

        Raises:
            sqlite3.IntegrityError: a trial id is taken (our own bug, not the user's).
        """
        seconds = self.seconds
        rows = [
            (
                self._position + place,
                seconds,
                trial.trial_id,
                json.dumps(dict(trial.parameters)),
                trial.planned_steps,
                trial.planned_tokens,
                str(trial.seed),
            )
            for place, trial in enumerate(trials, start=1)
        ]
        with self._database.transaction():
            self._database.connection.executemany(
                "INSERT INTO trials (position, seconds, trial_id, parameters, planned_steps, planned_tokens, seed) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
        self._position += len(rows)
        return self._position

    def append(self, events: Iterable[TrialEvent], decisions: Iterable[Decision] = ()) -> int:
        """Append one tick: its events, then the decisions they led to; one transaction. Return the last position.

        What the log already holds by trial, step and kind (of decisions also rule and numbers) is skipped.

        Raises:
            StorageFullError: the disk is full; nothing of this tick was written.
            sqlite3.IntegrityError: a trial is not known (our own bug).
        """
        entries = [*events, *decisions]
        if entries:
            with self._database.transaction():
                position = self.reader.log.append(entries, after=self._position, seconds=self.seconds)
            # a tick that failed gives its positions to the next
            self._position = position
        return self._position

    def trial_entered(self, trial_id: int, *, slot: int) -> None:
        with self._database.transaction():
            self._execute(
                "INSERT INTO residencies (trial_id, slot, start_position, start_seconds) VALUES (?, ?, ?, ?)",
                (trial_id, slot, self._position, self.seconds),
            )

    def trial_left(self, trial_id: int) -> None:
        """Record that a trial left its slot: parked, stopped or done. Harmless when it was in none."""
        with self._database.transaction():
            self._execute(
                "UPDATE residencies SET stop_position = ?, stop_seconds = ? "
                "WHERE trial_id = ? AND stop_position IS NULL",
                (self._position, self.seconds, trial_id),
            )

    def add_rank_work(self, work: Iterable[RankWork], *, start_seconds: float, end_seconds: float) -> None:
        """Record what each rank did in a stretch of run time."""
        rows = [
            (each.rank, start_seconds, end_seconds, each.train_seconds, each.evaluate_seconds, each.num_tokens)
            for each in work
        ]
        with self._database.transaction():
            self._execute(RANK_WORK)
            self._database.connection.executemany("INSERT INTO rank_work VALUES (?, ?, ?, ?, ?, ?)", rows)

    def set_facts(self, **facts: Unpack[FactUpdates]) -> None:
        """Record facts about the run in place of those that are there, e.g. ``set_facts(state=RunState.DONE)``."""
        with self._database.transaction():
            self._write_facts(facts)

    def _write_facts(self, facts: FactUpdates) -> None:
        rows = stored_facts(facts)
        # a fact that is None has no row, so that a group never keeps a value of the one it replaces
        self._database.connection.executemany("DELETE FROM facts WHERE key = ?", [(key,) for key in rows])
        self._database.connection.executemany(
            "INSERT INTO facts (key, value) VALUES (?, ?)", [row for row in rows.items() if row[1] is not None]
        )

    def add_seconds(self, seconds: Mapping[Activity, float]) -> None:
        # added to what is recorded: earlier processes of the run spent time as well
        before = self.reader.facts().seconds
        self.set_facts(seconds={activity: before.get(activity, 0.0) + more for activity, more in seconds.items()})

    def record_checkpoint(
        self, file_name: str, *, checksum: str, position: int | None = None, seconds: float | None = None
    ) -> CheckpointRecord:
        """Record that ``file_name`` holds the state at ``position``, and flush the log to the disk.

        Call it after the file itself is in place and flushed: a recorded checkpoint is always there.

        Args:
            position: None for the present one.
            seconds: Run time at that position; None for now.
        """
        record = CheckpointRecord(
            position=self._position if position is None else position,
            seconds=self.seconds if seconds is None else seconds,
            file_name=file_name,
            checksum=checksum,
        )
        # flushed here only: a power cut may lose later steps, but a resume goes back to the checkpoint anyway
        with database_errors_named(self.path):
            self._execute("PRAGMA synchronous = FULL")
        try:
            with self._database.transaction():
                self._execute(
                    "INSERT OR REPLACE INTO checkpoints (position, seconds, file_name, checksum) VALUES (?, ?, ?, ?)",
                    (record.position, record.seconds, file_name, checksum),
                )
        finally:
            self._execute("PRAGMA synchronous = NORMAL")
        return record

    def forget_checkpoints(self, positions: Iterable[int]) -> None:
        """Remove checkpoint rows; call it before their files are deleted."""
        with self._database.transaction():
            self._database.connection.executemany(
                "DELETE FROM checkpoints WHERE position = ?", [(p,) for p in positions]
            )

    def truncate_after(self, position: int) -> tuple[LoggedEvent | LoggedDecision, ...]:
        """Drop everything after ``position`` and return the dropped events and decisions in order, for replay."""
        # run time does not go back: the dropped steps were paid for
        self._seconds_before = max(self.reader.run_seconds(), self.seconds)
        self._opened_at = self._clock.monotonic()
        dropped = tuple(self.reader.log.entries(after=position))
        with self._database.transaction():
            # a trial proposed later takes its stays with it: they refer to it
            self._execute("DELETE FROM residencies WHERE start_position > ?", (position,))
            self._execute(
                "DELETE FROM residencies WHERE trial_id IN (SELECT trial_id FROM trials WHERE position > ?)",
                (position,),
            )
            self._execute("UPDATE residencies SET stop_position = ? WHERE stop_position > ?", (position, position))
            self._execute("DELETE FROM checkpoints WHERE position > ?", (position,))
            for table in LOG_TABLES:
                self._execute(f"DELETE FROM {table} WHERE position > ?", (position,))
            self._write_facts({"run_seconds": self._seconds_before})
        self._position = min(self._position, position)
        return dropped

    def close(self) -> None:
        """Record the run time and close. Harmless when closed already."""
        if not self._database.is_closed:
            self.set_facts(run_seconds=self.seconds)
            # closing folds the write-ahead log into the one file, so that a plain copy of it is whole
            self._database.close()
