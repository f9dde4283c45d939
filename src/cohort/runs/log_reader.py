"""Reading a run's log: steps, evaluations, decisions, the slot timeline. Works while another process writes."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cohort.core.events import Evaluated, StepDone, TrialFailed
from cohort.runs.records import EvaluationRecord, LoggedDecision, LoggedEvent, ResidencyRecord, StepRecord
from cohort.runs.schema import database_errors_named
from cohort.tuning.decisions import Decision, DecisionKind, Reason

__all__ = ["LogReader", "encode_numbers", "number"]


def encode_numbers(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """Return ``numbers`` for JSON, which has no NaN and no Inf: those become text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}


def _decode_numbers(text: str) -> dict[str, float]:
    return {name: float(value) if isinstance(value, str) else value for name, value in json.loads(text).items()}


def number(value: float | None) -> float:
    """Return what the database keeps of a number: NaN is null there."""
    return math.nan if value is None else float(value)


class LogReader:
    """Reads what happened in a run, in the order of its log."""

    def __init__(self, connection: sqlite3.Connection, *, path: Path) -> None:
        self.path = path
        self._connection = connection
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the database; harmless when closed already."""
        self._closed = True
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads inside the block see one moment of the run, whatever another process writes meanwhile."""
        if self._connection.in_transaction:
            yield
            return
        with database_errors_named(self.path):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _rows(self, query: str, arguments: tuple[object, ...] = ()) -> Iterator[tuple[Any, ...]]:
        with database_errors_named(self.path), closing(self._connection.cursor()) as cursor:
            yield from cursor.execute(query, arguments)

    def _one(self, query: str, arguments: tuple[object, ...] = ()) -> Any:
        return next(self._rows(query, arguments))[0]

    def last_position(self) -> int:
        """Return the last position that the log or a checkpoint holds; 0 when there is none."""
        return int(
            self._one(
                "SELECT max(coalesce((SELECT max(position) FROM log), 0), "
                "coalesce((SELECT max(position) FROM checkpoints), 0))"
            )
        )

    def steps(self, trial_id: int | None = None) -> list[StepRecord]:
        """Return the optimizer steps of one trial or of all, by trial and step."""
        where, arguments = _of_trial(trial_id)
        rows = self._rows(
            "SELECT position, seconds, trial_id, step, loss, grad_norm, learning_rate, num_tokens "
            f"FROM steps{where} ORDER BY trial_id, step",
            arguments,
        )
        return [
            StepRecord(
                position=position,
                seconds=seconds,
                trial_id=trial,
                step=step,
                loss=number(loss),
                grad_norm=number(norm),
                learning_rate=number(rate),
                num_tokens=tokens,
            )
            for position, seconds, trial, step, loss, norm, rate, tokens in rows
        ]

    def train_losses(self) -> dict[int, list[tuple[int, float]]]:
        """Return (step, loss) of every step by trial: a lighter form of :meth:`steps` for curves."""
        curves: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for trial_id, step, loss in self._rows("SELECT trial_id, step, loss FROM steps ORDER BY trial_id, step"):
            curves[trial_id].append((step, number(loss)))
        return dict(curves)

    def evaluations(self, trial_id: int | None = None) -> list[EvaluationRecord]:
        """Return the evaluations of one trial or of all, by trial and step."""
        where, arguments = _of_trial(trial_id)
        rows = self._rows(
            "SELECT position, seconds, trial_id, step, validation_loss, metrics, num_tokens "
            f"FROM evaluations{where} ORDER BY trial_id, step",
            arguments,
        )
        return [
            EvaluationRecord(
                position=position,
                seconds=seconds,
                trial_id=trial,
                step=step,
                validation_loss=number(loss),
                metrics=_decode_numbers(metrics),
                num_tokens=tokens,
            )
            for position, seconds, trial, step, loss, metrics, tokens in rows
        ]

    def decisions(self, trial_id: int | None = None) -> list[LoggedDecision]:
        """Return the decisions about one trial or about all, in the order they were taken."""
        where, arguments = _of_trial(trial_id)
        return self._decisions(f"{where} ORDER BY position", arguments)

    def _decisions(self, clause: str, arguments: tuple[object, ...]) -> list[LoggedDecision]:
        rows = self._rows(
            f"SELECT position, seconds, trial_id, step, kind, reason, rule, numbers, message FROM decisions{clause}",
            arguments,
        )
        return [
            LoggedDecision(
                position=position,
                seconds=seconds,
                decision=Decision(
                    trial_id=trial,
                    step=step,
                    kind=DecisionKind(kind),
                    reason=Reason(reason),
                    rule=rule,
                    numbers=_decode_numbers(numbers),
                    message=message,
                ),
            )
            for position, seconds, trial, step, kind, reason, rule, numbers, message in rows
        ]

    def log(self, *, after: int = 0) -> list[LoggedEvent | LoggedDecision]:
        """Return events and decisions after position ``after``, in the order of the log."""
        entries: list[LoggedEvent | LoggedDecision] = list(
            self._decisions(" WHERE position > ? ORDER BY position", (after,))
        )
        for position, seconds, *columns in self._rows(
            "SELECT position, seconds, trial_id, step, loss, grad_norm, learning_rate, num_tokens FROM steps "
            "WHERE position > ?",
            (after,),
        ):
            trial, step, loss, norm, rate, tokens = columns
            done = StepDone(
                trial_id=trial,
                step=step,
                loss=number(loss),
                grad_norm=number(norm),
                learning_rate=number(rate),
                num_tokens=tokens,
            )
            entries.append(LoggedEvent(position=position, seconds=seconds, event=done))
        for position, seconds, trial, step, loss, metrics, tokens in self._rows(
            "SELECT position, seconds, trial_id, step, validation_loss, metrics, num_tokens FROM evaluations "
            "WHERE position > ?",
            (after,),
        ):
            evaluated = Evaluated(
                trial_id=trial,
                step=step,
                validation_loss=number(loss),
                metrics=_decode_numbers(metrics),
                num_tokens=tokens,
            )
            entries.append(LoggedEvent(position=position, seconds=seconds, event=evaluated))
        for position, seconds, trial, step, message in self._rows(
            "SELECT position, seconds, trial_id, step, message FROM failures WHERE position > ?", (after,)
        ):
            failed = TrialFailed(trial_id=trial, step=step, message=message)
            entries.append(LoggedEvent(position=position, seconds=seconds, event=failed))
        return sorted(entries, key=lambda entry: entry.position)

    def residencies(self) -> list[ResidencyRecord]:
        """Return every stay of a trial in a slot, in the order they began."""
        rows = self._rows(
            "SELECT trial_id, slot, start_position, start_seconds, stop_position, stop_seconds FROM residencies "
            "ORDER BY residency_id"
        )
        return [
            ResidencyRecord(
                trial_id=trial,
                slot=slot,
                start_position=start,
                start_seconds=start_seconds,
                stop_position=stop,
                stop_seconds=stop_seconds,
            )
            for trial, slot, start, start_seconds, stop, stop_seconds in rows
        ]

    def tokens_since(self, seconds: float) -> int:
        """Return the tokens trained and evaluated after ``seconds`` of run time."""
        return int(
            self._one(
                "SELECT coalesce((SELECT sum(num_tokens) FROM steps WHERE seconds > ?), 0) "
                "+ coalesce((SELECT sum(num_tokens) FROM evaluations WHERE seconds > ?), 0)",
                (seconds, seconds),
            )
        )


def _of_trial(trial_id: int | None) -> tuple[str, tuple[object, ...]]:
    return ("", ()) if trial_id is None else (" WHERE trial_id = ?", (trial_id,))
