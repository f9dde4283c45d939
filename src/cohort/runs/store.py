"""The one owner of a run's database: what happened, what was decided, in the order it happened.

A log position numbers every trial, event and decision. Appending is transactional and idempotent: what is already there
by (trial, step, kind) is kept as it is, so that a resumed run may send its last steps again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from cohort.core.clock import Clock, SystemClock
from cohort.core.events import Evaluated, StepDone, TrialEvent, TrialFailed
from cohort.runs.facts import Activity, FactUpdates, stored_facts
from cohort.runs.log_reader import encode_numbers
from cohort.runs.reader import RunReader
from cohort.runs.records import CheckpointRecord, LoggedDecision, LoggedEvent, NewTrial
from cohort.runs.schema import SCHEMA_VERSION, create_tables, database_errors_named, open_database
from cohort.tuning.decisions import Decision
from cohort.tuning.objective_metric import LOSS, ObjectiveMetric

__all__ = ["RunStore"]

_LOG_TABLES = ("decisions", "failures", "evaluations", "steps", "trials")


class RunStore(RunReader):
    """Writes and reads one run. Only the process that holds the run directory's lock may have one.

    Everything is committed when the method that wrote it returns. Run time (``seconds``) goes on from where the last
    process left it and never counts the time in between.
    """

    @classmethod
    def create(cls, path: Path, *, metric: ObjectiveMetric = LOSS, clock: Clock | None = None) -> RunStore:
        """Create the database of a new run.

        Raises:
            RunStateError: there is one already.
            StorageFullError: the disk is full.
        """
        create_tables(path, facts=stored_facts({"metric": metric.name, "metric_maximize": metric.maximize}))
        return cls(open_database(path, read_only=False), path=path, clock=clock or SystemClock())

    @classmethod
    def resume(cls, path: Path, *, clock: Clock | None = None) -> RunStore:
        """Open the database of a run to go on with it; stays in slots that a kill left open end where the log ends.

        Raises:
            RunStateError: the file is absent, damaged, not a run's, or of another version.
        """
        store = cls(open_database(path, read_only=False), path=path, clock=clock or SystemClock())
        with store._transaction():
            store._upgrade()
            store._connection.execute(
                "UPDATE residencies SET stop_position = max(?, start_position), stop_seconds = max(?, start_seconds) "
                "WHERE stop_position IS NULL",
                (store._position, store._seconds_before),
            )
        return store

    def __init__(self, connection: sqlite3.Connection, *, path: Path, clock: Clock) -> None:
        super().__init__(connection, path=path)
        self._clock = clock
        self._seconds_before = self.run_seconds()
        self._opened_at = clock.monotonic()
        self._position = self.last_position()

    def _upgrade(self) -> None:
        """Bring the record of a run that the version before began to the form of this one."""
        if self._one("PRAGMA user_version") != SCHEMA_VERSION:
            self._write_facts({"inputs": self.facts().inputs})
            self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @property
    def seconds(self) -> float:
        """Run time now: seconds that processes of this run have lived, stops not counted."""
        return self._seconds_before + self._clock.monotonic() - self._opened_at

    @property
    def position(self) -> int:
        """The last position given out; 0 when there was none. What was skipped as known leaves a gap."""
        return self._position

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with database_errors_named(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def add_trials(self, trials: Sequence[NewTrial]) -> int:
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
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO trials (position, seconds, trial_id, parameters, planned_steps, planned_tokens, seed) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
        self._position += len(rows)
        return self._position

    def append(self, events: Iterable[TrialEvent], decisions: Iterable[Decision] = ()) -> int:
        """Append one tick: its events, then the decisions they led to; one transaction. Return the last position.

        What the log already holds by (trial, step, kind) is skipped.

        Raises:
            StorageFullError: the disk is full; nothing of this tick was written.
            sqlite3.IntegrityError: a trial is not known (our own bug).
        """
        seconds = self.seconds
        position = self._position
        rows: dict[type[object], list[tuple[object, ...]]] = {}
        for event in events:
            position += 1
            rows.setdefault(type(event), []).append((position, seconds, *_event_columns(event)))
        for decision in decisions:
            position += 1
            rows.setdefault(Decision, []).append((position, seconds, *_decision_columns(decision)))
        if not rows:
            return self._position
        with self._transaction():
            for kind, batch in rows.items():
                self._connection.executemany(_INSERTS[kind], batch)
        self._position = position
        return position

    def trial_entered(self, trial_id: int, *, slot: int) -> None:
        """Record that a trial became resident in ``slot``."""
        with self._transaction():
            self._connection.execute(
                "INSERT INTO residencies (trial_id, slot, start_position, start_seconds) VALUES (?, ?, ?, ?)",
                (trial_id, slot, self._position, self.seconds),
            )

    def trial_left(self, trial_id: int) -> None:
        """Record that a trial left its slot: parked, stopped or done. Harmless when it was in none."""
        with self._transaction():
            self._connection.execute(
                "UPDATE residencies SET stop_position = ?, stop_seconds = ? "
                "WHERE trial_id = ? AND stop_position IS NULL",
                (self._position, self.seconds, trial_id),
            )

    def set_facts(self, **facts: Unpack[FactUpdates]) -> None:
        """Record facts about the run in place of those that are there, e.g. ``set_facts(state=RunState.DONE)``."""
        with self._transaction():
            self._write_facts(facts)

    def _write_facts(self, facts: FactUpdates) -> None:
        rows = stored_facts(facts)
        self._connection.executemany("DELETE FROM facts WHERE key = ?", [(key,) for key in rows])
        self._connection.executemany(
            "INSERT INTO facts (key, value) VALUES (?, ?)", [row for row in rows.items() if row[1] is not None]
        )

    def add_seconds(self, seconds: Mapping[Activity, float]) -> None:
        """Add to the time spent on activities."""
        before = self.facts().seconds
        self.set_facts(seconds={activity: before.get(activity, 0.0) + more for activity, more in seconds.items()})

    def record_checkpoint(self, file_name: str, *, checksum: str) -> CheckpointRecord:
        """Record that ``file_name`` holds the state at the present position, and flush the log to the disk.

        Call it after the file itself is in place and flushed: a recorded checkpoint is always there.
        """
        record = CheckpointRecord(position=self._position, seconds=self.seconds, file_name=file_name, checksum=checksum)
        with database_errors_named(self.path):
            self._connection.execute("PRAGMA synchronous = FULL")
        try:
            with self._transaction():
                self._connection.execute(
                    "INSERT OR REPLACE INTO checkpoints (position, seconds, file_name, checksum) VALUES (?, ?, ?, ?)",
                    (record.position, record.seconds, file_name, checksum),
                )
        finally:
            self._connection.execute("PRAGMA synchronous = NORMAL")
        return record

    def forget_checkpoints(self, positions: Iterable[int]) -> None:
        """Remove checkpoint rows; call it before their files are deleted."""
        with self._transaction():
            self._connection.executemany("DELETE FROM checkpoints WHERE position = ?", [(p,) for p in positions])

    def truncate_after(self, position: int) -> tuple[LoggedEvent | LoggedDecision, ...]:
        """Drop everything after ``position`` and return the dropped events and decisions in order, for replay.

        Run time does not go back: what was dropped was still paid for.
        """
        self._seconds_before = max(self.run_seconds(), self.seconds)
        self._opened_at = self._clock.monotonic()
        dropped = tuple(self.log(after=position))
        with self._transaction():
            execute = self._connection.execute
            # a trial proposed later takes its stays with it: they refer to it
            execute("DELETE FROM residencies WHERE start_position > ?", (position,))
            execute(
                "DELETE FROM residencies WHERE trial_id IN (SELECT trial_id FROM trials WHERE position > ?)",
                (position,),
            )
            execute("UPDATE residencies SET stop_position = ? WHERE stop_position > ?", (position, position))
            execute("DELETE FROM checkpoints WHERE position > ?", (position,))
            for table in _LOG_TABLES:
                execute(f"DELETE FROM {table} WHERE position > ?", (position,))
            self._write_facts({"run_seconds": self._seconds_before})
        self._position = min(self._position, position)
        return dropped

    def close(self) -> None:
        """Record the run time and close; the log is folded into the one file. Harmless when closed already."""
        if self.is_closed:
            return
        self.set_facts(run_seconds=self.seconds)
        super().close()


# not OR IGNORE: that would also swallow a missing value
_INSERTS: dict[type[object], str] = {
    StepDone: "INSERT INTO steps (position, seconds, trial_id, step, loss, grad_norm, learning_rate, num_tokens) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (trial_id, step) DO NOTHING",
    Evaluated: "INSERT INTO evaluations (position, seconds, trial_id, step, validation_loss, metrics, num_tokens) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (trial_id, step) DO NOTHING",
    TrialFailed: "INSERT INTO failures (position, seconds, trial_id, step, message) "
    "VALUES (?, ?, ?, ?, ?) ON CONFLICT (trial_id, step) DO NOTHING",
    Decision: "INSERT INTO decisions (position, seconds, trial_id, step, kind, reason, rule, numbers, message) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (trial_id, step, kind) DO NOTHING",
}


def _event_columns(event: TrialEvent) -> tuple[object, ...]:
    match event:
        case StepDone():
            return (event.trial_id, event.step, event.loss, event.grad_norm, event.learning_rate, event.num_tokens)
        case Evaluated():
            metrics = json.dumps(encode_numbers(event.metrics))
            return (event.trial_id, event.step, event.validation_loss, metrics, event.num_tokens)
        case TrialFailed():
            return (event.trial_id, event.step, event.message)


def _decision_columns(decision: Decision) -> tuple[object, ...]:
    return (
        decision.trial_id,
        decision.step,
        str(decision.kind),
        str(decision.reason),
        decision.rule,
        json.dumps(encode_numbers(decision.numbers)),
        decision.message,
    )
