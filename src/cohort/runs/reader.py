"""Reading a run: its facts, its trials and how far they came. Works while another process writes."""

from __future__ import annotations

import json
from pathlib import Path

from cohort.core.errors import RunStateError
from cohort.runs.facts import RunFacts
from cohort.runs.log_reader import LogReader, number
from cohort.runs.records import CheckpointRecord, EvaluationRecord, TrialRecord, TrialStatus
from cohort.runs.schema import open_database
from cohort.tuning.decisions import FAILED, Decision, DecisionKind

__all__ = ["RunReader"]


class RunReader(LogReader):
    """Reads one run; open it with :meth:`open` and close it, or use it with ``with``."""

    @classmethod
    def open(cls, path: Path) -> RunReader:
        """Open a run's database for reading only.

        Raises:
            RunStateError: the file is absent, damaged, not a run's, or of another version.
        """
        return RunReader(open_database(path, read_only=True), path=path)

    def run_seconds(self) -> float:
        """Return the run time up to the last thing recorded."""
        logged = self._one("SELECT coalesce(max(seconds), 0) FROM log")
        return max(float(logged), self.facts().run_seconds)

    def facts(self) -> RunFacts:
        """Return what the record says of the run as a whole."""
        return RunFacts.from_stored({key: json.loads(text) for key, text in self._rows("SELECT key, value FROM facts")})

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
            trial_id: (steps_done, tokens, number(last_loss))
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
        name = self.facts().metric
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


def _status(decision: Decision | None, *, resident: bool, steps_done: int) -> tuple[TrialStatus, str, str]:
    if decision is not None and decision.kind is DecisionKind.FINISH:
        return TrialStatus.COMPLETED, str(decision.reason), ""
    if decision is not None and decision.kind is DecisionKind.STOP:
        failed = decision.reason == FAILED
        return (TrialStatus.FAILED if failed else TrialStatus.STOPPED), str(decision.reason), decision.message
    if resident:
        return TrialStatus.RUNNING, "", ""
    # out of its slot with work behind it: its state is kept somewhere, whether by a rule or for want of a slot
    return (TrialStatus.PARKED if steps_done else TrialStatus.WAITING), "", ""
