"""A run's log: steps, evaluations, failures and decisions, each a row of its table; and the stays of trials in slots.

The columns of a table are the fields of its record, so that a row is written and read by one rule.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

from cohort.core.events import Evaluated, ReadAnswer, StepDone, TrialEvent, TrialFailed
from cohort.runs.database import Database
from cohort.runs.records import (
    EvaluationRecord,
    LoggedDecision,
    LoggedEvent,
    RankWorkRecord,
    ResidencyRecord,
    StepRecord,
)
from cohort.tuning.decisions import Decision, DecisionKind, Reason

__all__ = ["LOG_TABLES", "RunLog", "answers_from_json", "number", "numbers_from_json"]

_Record = TypeVar("_Record")

_TABLES: dict[type[object], str] = {
    StepDone: "steps",
    Evaluated: "evaluations",
    TrialFailed: "failures",
    Decision: "decisions",
}
LOG_TABLES = (*_TABLES.values(), "trials")
"""Every table whose rows have a position of the log; those that refer to trials first."""


def number(value: float | None) -> float:
    """Return a number as it was before the database turned NaN into NULL."""
    return math.nan if value is None else float(value)


def numbers_from_json(text: str) -> dict[str, float]:
    return {name: float(value) if isinstance(value, str) else value for name, value in json.loads(text).items()}


def _rows_from_json(text: str) -> dict[str, tuple[float, ...]]:
    return {
        name: struct.unpack(f"<{len(content) // 4}f", content)
        for name, content in ((name, base64.b64decode(values)) for name, values in json.loads(text).items())
    }


def _rows_to_json(rows: Mapping[str, Sequence[float]]) -> str:
    # a dozen digits for each row of each evaluation would be most of the file
    return json.dumps(
        {name: base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() for name, values in rows.items()}
    )


def answers_from_json(text: str) -> tuple[ReadAnswer, ...]:
    return tuple(
        ReadAnswer(prompt=prompt, text=answer, reward=number(reward)) for prompt, answer, reward in json.loads(text)
    )


def _answers_to_json(answers: Sequence[ReadAnswer]) -> str:
    return json.dumps([[own.prompt, own.text, own.reward if math.isfinite(own.reward) else None] for own in answers])


_FROM_COLUMN: dict[str, Callable[[Any], Any]] = {
    "loss": number,
    "grad_norm": number,
    "learning_rate": number,
    "validation_loss": number,
    "metrics": numbers_from_json,
    "row_values": _rows_from_json,
    "answers": answers_from_json,
    "numbers": numbers_from_json,
    "kind": DecisionKind,
    "reason": Reason,
}


def _to_column(name: str, value: Any) -> object:
    if name == "row_values":
        return _rows_to_json(value)
    if name == "answers":
        return _answers_to_json(value)
    if isinstance(value, Mapping):
        # JSON has no NaN and no Inf: those become text
        return json.dumps({name: item if math.isfinite(item) else str(item) for name, item in value.items()})
    return str(value) if isinstance(value, str) else value


def _columns(kind: type[Any]) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))


def _insert(kind: type[Any]) -> str:
    columns = ("position", "seconds", *_columns(kind))
    known_by = "trial_id, step, kind, rule, numbers" if kind is Decision else "trial_id, step"
    # not OR IGNORE: that would also swallow a missing value
    return (
        f"INSERT INTO {_TABLES[kind]} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
        f"ON CONFLICT ({known_by}) DO NOTHING"
    )


_INSERTS = {kind: _insert(kind) for kind in _TABLES}


class RunLog:
    """Reads and appends what happened in a run, in the order of its log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, entries: Iterable[TrialEvent | Decision], *, after: int, seconds: float) -> int:
        """Append ``entries`` at the positions that follow ``after``; call it within a transaction.

        What the log holds already by trial, step and kind (of decisions also rule and numbers) is skipped.

        Returns:
            The last position given out.
        """
        rows: dict[type[object], list[tuple[object, ...]]] = {}
        position = after
        for position, entry in enumerate(entries, start=after + 1):
            values = (_to_column(column, getattr(entry, column)) for column in _columns(type(entry)))
            rows.setdefault(type(entry), []).append((position, seconds, *values))
        # one statement for all rows of a kind: a tick of many trials stays one short transaction
        for kind, batch in rows.items():
            self._database.connection.executemany(_INSERTS[kind], batch)
        return position

    def last_position(self) -> int:
        """Return the last position that the log or a checkpoint holds; 0 when there is none."""
        # a table each: of the view, SQLite would read every row
        latest = (f"coalesce((SELECT max(position) FROM {table}), 0)" for table in (*LOG_TABLES, "checkpoints"))
        return int(self._database.one(f"SELECT max({', '.join(latest)})"))

    def last_seconds(self) -> float:
        """Return the run time of the last row; 0 when there is none."""
        # run time never goes back: the last row of a table is its latest, and found without reading the others
        latest = (f"coalesce((SELECT seconds FROM {table} ORDER BY position DESC LIMIT 1), 0)" for table in LOG_TABLES)
        return float(self._database.one(f"SELECT max({', '.join(latest)})"))

    def steps_after(self, position: int) -> Iterator[tuple[int, float, int, int, float, int]]:
        """Return (position, seconds, trial, step, loss, tokens) of each step after ``position``, in order."""
        # plain tuples, as of train_losses
        rows = self._database.rows(
            "SELECT position, seconds, trial_id, step, loss, num_tokens FROM steps WHERE position > ? "
            "ORDER BY position",
            (position,),
        )
        for at, seconds, trial_id, step, loss, tokens in rows:
            yield at, seconds, trial_id, step, number(loss), tokens

    def evaluations_after(self, position: int) -> list[EvaluationRecord]:
        """Return the evaluations after ``position``, in order, without ``row_values`` as of :meth:`evaluations`."""
        clause = "WHERE position > ? ORDER BY position"
        return list(self._select(EvaluationRecord, "evaluations", clause, (position,), without=("row_values",)))

    def evaluated_tokens_after(self, position: int) -> Iterator[tuple[int, float, int]]:
        """Return (position, seconds, tokens) of each evaluation after ``position``, in order."""
        query = "SELECT position, seconds, num_tokens FROM evaluations WHERE position > ? ORDER BY position"
        return self._database.rows(query, (position,))

    def losses_at(
        self, steps: Sequence[int], *, trials: Sequence[int] | None = None
    ) -> dict[int, list[tuple[int, float]]]:
        """Return (step, loss) of some steps by trial, without reading the steps between them.

        Args:
            steps: Their numbers; those that a trial has not done are left out.
            trials: Those to read; None for all.
        """
        curves: dict[int, list[tuple[int, float]]] = defaultdict(list)
        wanted = None if trials is None else json.dumps(list(trials))
        # the order of a CROSS JOIN is kept: a look-up for each point, where SQLite would else read the whole table
        rows = self._database.rows(
            "SELECT steps.trial_id, step, loss FROM trials CROSS JOIN steps WHERE steps.trial_id = trials.trial_id "
            "AND step IN (SELECT value FROM json_each(?)) "
            "AND (? IS NULL OR trials.trial_id IN (SELECT value FROM json_each(?))) ORDER BY steps.trial_id, step",
            (json.dumps(list(steps)), wanted, wanted),
        )
        for trial_id, step, loss in rows:
            curves[trial_id].append((step, number(loss)))
        return dict(curves)

    def proposal_positions(self) -> dict[int, int]:
        """Return where in the log each trial was proposed, by trial id, in order."""
        return dict(self._database.rows("SELECT trial_id, position FROM trials ORDER BY position"))

    def steps(self, trial_id: int | None = None) -> list[StepRecord]:
        """Return the optimizer steps of one trial or of all, by trial and step."""
        return list(self._select(StepRecord, "steps", *_of_trial(trial_id, order="trial_id, step")))

    def train_losses(self) -> dict[int, list[tuple[int, float]]]:
        """Return (step, loss) of every step by trial: a lighter form of :meth:`steps` for curves."""
        # plain tuples: a long run has more steps than anything else, and a curve needs two numbers of each
        curves: dict[int, list[tuple[int, float]]] = defaultdict(list)
        rows = self._database.rows("SELECT trial_id, step, loss FROM steps ORDER BY trial_id, step")
        for trial_id, step, loss in rows:
            curves[trial_id].append((step, number(loss)))
        return dict(curves)

    def evaluations(self, trial_id: int | None = None) -> list[EvaluationRecord]:
        """Return the evaluations of one trial or of all, by trial and step.

        Without ``row_values``: a resume alone reads them, from :meth:`entries`, and they take longer than all the rest.
        """
        clause, arguments = _of_trial(trial_id, order="trial_id, step")
        return list(self._select(EvaluationRecord, "evaluations", clause, arguments, without=("row_values",)))

    def row_values(self, trial_id: int, *, step: int) -> Mapping[str, tuple[float, ...]]:
        """Return what each row had in one evaluation (:attr:`~cohort.core.events.Evaluated.row_values`), if known."""
        clause = "WHERE trial_id = ? AND step = ?"
        found = self._logged(Evaluated, clause, (trial_id, step))
        return next((evaluated.row_values for _, _, evaluated in found), {})

    def decisions(self, trial_id: int | None = None) -> list[LoggedDecision]:
        """Return the decisions about one trial or about all, in the order they were taken."""
        logged = self._logged(Decision, *_of_trial(trial_id, order="position"))
        return [LoggedDecision(position=at, seconds=seconds, decision=decision) for at, seconds, decision in logged]

    def entries(self, *, after: int = 0) -> list[LoggedEvent | LoggedDecision]:
        """Return events and decisions after position ``after``, in the order of the log."""
        clause, arguments = "WHERE position > ?", (after,)
        found: list[LoggedEvent | LoggedDecision] = [
            LoggedDecision(position=position, seconds=seconds, decision=decision)
            for position, seconds, decision in self._logged(Decision, clause, arguments)
        ]
        events: tuple[type[TrialEvent], ...] = (StepDone, Evaluated, TrialFailed)
        for kind in events:
            found += [
                LoggedEvent(position=position, seconds=seconds, event=event)
                for position, seconds, event in self._logged(kind, clause, arguments)
            ]
        # each kind has a table of its own; the position joins them to one order
        return sorted(found, key=lambda entry: entry.position)

    def residencies(self) -> list[ResidencyRecord]:
        """Return every stay of a trial in a slot, in the order they began."""
        return list(self._select(ResidencyRecord, "residencies", "ORDER BY residency_id"))

    def rank_work(self) -> list[RankWorkRecord]:
        """Return what each of several GPUs did, by time and GPU; empty where there was one."""
        # a run on one GPU has no such table
        if not self._database.one("SELECT count(*) FROM sqlite_master WHERE name = 'rank_work'"):
            return []
        return list(self._select(RankWorkRecord, "rank_work", "ORDER BY start_seconds, rank"))

    def tokens_at(self, since: float) -> dict[float, int]:
        """Return the tokens trained and evaluated after ``since`` seconds of run time, by their time."""
        recent: dict[float, int] = {}
        for table in ("steps", "evaluations"):
            query = f"SELECT seconds, sum(num_tokens) FROM {table} WHERE position > ? GROUP BY seconds"
            for seconds, tokens in self._database.rows(query, (self._last_until(table, since),)):
                recent[seconds] = recent.get(seconds, 0) + tokens
        return recent

    def _last_until(self, table: str, seconds: float) -> int:
        """Return a position of ``table`` after which its rows are later than ``seconds``, by halves."""
        # run time never goes back, so that no row has to be read but those that are looked at
        least, most = 0, int(self._database.one(f"SELECT coalesce(max(position), 0) FROM {table}"))
        while least < most:
            middle = (least + most + 1) // 2
            query = (
                f"SELECT coalesce((SELECT seconds FROM {table} WHERE position <= ? ORDER BY position DESC LIMIT 1), -1)"
            )
            if self._database.one(query, (middle,)) <= seconds:
                least = middle
            else:
                most = middle - 1
        return least

    def tokens_by_time(self, width: float) -> list[tuple[int, int]]:
        """Return (n, tokens trained and evaluated) of each stretch from ``n * width`` seconds of run time on."""
        query = (
            "SELECT cast(seconds / ? AS INTEGER) AS stretch, sum(num_tokens) FROM "
            "(SELECT seconds, num_tokens FROM steps UNION ALL SELECT seconds, num_tokens FROM evaluations) "
            "GROUP BY stretch ORDER BY stretch"
        )
        return [(int(stretch), int(tokens)) for stretch, tokens in self._database.rows(query, (width,))]

    def tokens_since(self, seconds: float) -> int:
        """Return the tokens trained and evaluated after ``seconds`` of run time."""
        return sum(self.tokens_at(seconds).values())

    def _select(
        self,
        kind: type[_Record],
        table: str,
        clause: str,
        arguments: tuple[object, ...] = (),
        *,
        without: Collection[str] = (),
    ) -> Iterator[_Record]:
        names = tuple(name for name in _columns(kind) if name not in without)
        make = _maker(kind, names)
        return map(make, self._database.rows(f"SELECT {', '.join(names)} FROM {table} {clause}", arguments))

    def _logged(
        self, kind: type[_Record], clause: str, arguments: tuple[object, ...] = ()
    ) -> Iterator[tuple[int, float, _Record]]:
        names = _columns(kind)
        make = _maker(kind, names)
        query = f"SELECT position, seconds, {', '.join(names)} FROM {_TABLES[kind]} {clause}"
        for position, seconds, *row in self._database.rows(query, arguments):
            yield position, seconds, make(row)


def _maker(kind: type[_Record], names: tuple[str, ...]) -> Callable[[Iterable[Any]], _Record]:
    # looked up once, not for each of a run's many thousand rows
    readers = [(name, _FROM_COLUMN.get(name)) for name in names]
    build = cast("Callable[..., _Record]", kind)

    def make(row: Iterable[Any]) -> _Record:
        values = zip(readers, row, strict=True)
        return build(**{name: value if read is None else read(value) for (name, read), value in values})

    return make


def _of_trial(trial_id: int | None, *, order: str) -> tuple[str, tuple[object, ...]]:
    where, arguments = ("", ()) if trial_id is None else ("WHERE trial_id = ? ", (trial_id,))
    return f"{where}ORDER BY {order}", arguments
