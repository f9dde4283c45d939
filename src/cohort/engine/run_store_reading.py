"""Reading a run: trials, curves, decisions, the slot timeline. Works while another process writes."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from cohort.core.errors import RunStateError
from cohort.core.events import Evaluated, StepDone, TrialFailed
from cohort.engine.run_store_records import (
    CheckpointRecord,
    EvaluationRecord,
    JsonValue,
    LoggedDecision,
    LoggedEvent,
    ResidencyRecord,
    StepRecord,
    TrialRecord,
    TrialStatus,
)
from cohort.engine.run_store_schema import database_errors_named, open_database
from cohort.tuning.decisions import Decision, DecisionKind, Reason
from cohort.tuning.objective_metric import ObjectiveMetric

__all__ = ["RunReader", "encode_numbers"]


def encode_numbers(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """Return ``numbers`` for JSON, which has no NaN and no Inf: those become text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()}


def _decode_numbers(text: str) -> dict[str, float]:
    return {name: float(value) if isinstance(value, str) else value for name, value in json.loads(text).items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


class RunReader:
    """Reads one run; open it with :meth:`open` and close it, or use it with ``with``."""

    @classmethod
    def open(cls, path: Path) -> RunReader:
        """Open a run's database for reading only.

        Raises:
            RunStateError: the file is absent, damaged, not a run's, or of another version.
        """
        return RunReader(open_database(path, read_only=True), path=path)

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

    def __enter__(self) -> RunReader:
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

    def run_seconds(self) -> float:
        """Return the run time up to the last thing recorded."""
        logged = self._one("SELECT coalesce(max(seconds), 0) FROM log")
        recorded = self.facts().get("run_seconds", 0.0)
        return max(float(logged), float(recorded) if isinstance(recorded, int | float) else 0.0)

    def facts(self) -> dict[str, JsonValue]:
        """Return all facts by key.

        Keys that report and status know; any other is listed as it is:
        ``task_name`` ``base_model`` ``objective`` ``state`` (running, interrupted, done) ``best_trial_id``
        ``training`` ({key: value} of settings that all trials share) ``num_slots``
        ``metric`` ``metric_maximize`` ``base_metrics`` ({name: value} of the model without adapter)
        ``default_trial_id`` ``default_metrics`` ``warmup_fraction`` ``kept_share``
        ``versions`` ({package: version}) ``backend`` ``precision`` ``attention`` ``threads`` ``device``
        ``data_hash`` ``model_hash`` ``task_hash`` ``tokenise_seconds`` ``load_seconds`` ``train_seconds``
        ``evaluate_seconds`` ``generate_seconds`` ``data_counts`` ({what: count}) ``data_problems`` ([{where, found,
        allowed, mend}]).
        """
        return {key: json.loads(value) for key, value in self._rows("SELECT key, value FROM facts ORDER BY key")}

    def metric(self) -> ObjectiveMetric:
        """Return what the best checkpoint is chosen by."""
        facts = self.facts()
        return ObjectiveMetric(
            name=str(facts.get("metric", "loss")), maximize=bool(facts.get("metric_maximize", False))
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
                loss=_number(loss),
                grad_norm=_number(norm),
                learning_rate=_number(rate),
                num_tokens=tokens,
            )
            for position, seconds, trial, step, loss, norm, rate, tokens in rows
        ]

    def train_losses(self) -> dict[int, list[tuple[int, float]]]:
        """Return (step, loss) of every step by trial: a lighter form of :meth:`steps` for curves."""
        curves: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for trial_id, step, loss in self._rows("SELECT trial_id, step, loss FROM steps ORDER BY trial_id, step"):
            curves[trial_id].append((step, _number(loss)))
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
                validation_loss=_number(loss),
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
                loss=_number(loss),
                grad_norm=_number(norm),
                learning_rate=_number(rate),
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
                validation_loss=_number(loss),
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

    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints, latest last."""
        rows = self._rows("SELECT position, seconds, file_name, checksum FROM checkpoints ORDER BY position")
        return [
            CheckpointRecord(position=position, seconds=seconds, file_name=name, checksum=checksum)
            for position, seconds, name, checksum in rows
        ]

    def trials(self) -> list[TrialRecord]:
        """Return every trial with how far it came, by trial id."""
        progress = {
            trial_id: (steps_done, tokens, _number(last_loss))
            for trial_id, steps_done, tokens, last_loss in self._rows(
                # SQLite defines the bare column as that of the row with the maximum
                "SELECT trial_id, max(step), sum(num_tokens), loss FROM steps GROUP BY trial_id"
            )
        }
        best, evaluation_tokens = self._best_evaluations(), self._evaluation_tokens()
        standing = self._standing()
        resident = {row[0] for row in self._rows("SELECT trial_id FROM residencies WHERE stop_position IS NULL")}
        records = []
        for trial_id, parameters, planned_steps, planned_tokens, seed in self._rows(
            "SELECT trial_id, parameters, planned_steps, planned_tokens, seed FROM trials ORDER BY trial_id"
        ):
            steps_done, tokens, last_loss = progress.get(trial_id, (0, 0, None))
            status, reason, message = _status(
                standing.get(trial_id), resident=trial_id in resident, steps_done=steps_done
            )
            best_value, best_evaluation = best.get(trial_id, (None, None))
            records.append(
                TrialRecord(
                    trial_id=trial_id,
                    parameters=json.loads(parameters),
                    planned_steps=planned_steps,
                    seed=int(seed),
                    planned_tokens=planned_tokens,
                    status=status,
                    reason=reason,
                    message=message,
                    steps_done=steps_done,
                    tokens=tokens,
                    evaluation_tokens=evaluation_tokens.get(trial_id, 0),
                    last_loss=last_loss,
                    best_step=best_evaluation.step if best_evaluation else None,
                    best_value=best_value,
                    best_loss=best_evaluation.validation_loss if best_evaluation else None,
                    best_metrics=best_evaluation.metrics if best_evaluation else {},
                )
            )
        return records

    def proposal_positions(self) -> dict[int, int]:
        """Return where in the log each trial was proposed, by trial id, in order."""
        return dict(self._rows("SELECT trial_id, position FROM trials ORDER BY position"))

    def trial(self, trial_id: int) -> TrialRecord:
        """Return one trial.

        Raises:
            RunStateError: the run has no such trial.
        """
        records = {record.trial_id: record for record in self.trials()}
        if trial_id not in records:
            raise RunStateError(f"{self.path} has no trial {trial_id}; it has {len(records)}, see `cohort status`")
        return records[trial_id]

    def _best_evaluations(self) -> dict[int, tuple[float, EvaluationRecord]]:
        """The best value and its evaluation by trial, as the study decided: its last new best."""
        name = self.metric().name
        clause = " WHERE kind = ? ORDER BY position"
        values = {
            entry.decision.trial_id: (entry.decision.step, entry.decision.numbers[name])
            for entry in self._decisions(clause, (DecisionKind.NEW_BEST.value,))
        }
        return {
            record.trial_id: (values[record.trial_id][1], record)
            for record in self.evaluations()
            if record.trial_id in values and values[record.trial_id][0] == record.step
        }

    def _evaluation_tokens(self) -> dict[int, int]:
        return dict(self._rows("SELECT trial_id, sum(num_tokens) FROM evaluations GROUP BY trial_id"))

    def _standing(self) -> dict[int, Decision]:
        """The last decision about each trial that says where it stands."""
        clause = " WHERE kind != ? ORDER BY position"
        return {
            entry.decision.trial_id: entry.decision for entry in self._decisions(clause, (DecisionKind.NEW_BEST.value,))
        }


def _of_trial(trial_id: int | None) -> tuple[str, tuple[object, ...]]:
    return ("", ()) if trial_id is None else (" WHERE trial_id = ?", (trial_id,))


def _status(decision: Decision | None, *, resident: bool, steps_done: int) -> tuple[TrialStatus, str, str]:
    if decision is not None and decision.kind is DecisionKind.FINISH:
        return TrialStatus.COMPLETED, decision.reason.value, ""
    if decision is not None and decision.kind is DecisionKind.STOP:
        failed = decision.reason is Reason.FAILED
        return (TrialStatus.FAILED if failed else TrialStatus.STOPPED), decision.reason.value, decision.message
    if resident:
        return TrialStatus.RUNNING, "", ""
    # out of its slot with work behind it: its state is kept somewhere, whether by a rule or for want of a slot
    return (TrialStatus.PARKED if steps_done else TrialStatus.WAITING), "", ""
