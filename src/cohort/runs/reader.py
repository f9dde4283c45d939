"""Reading a run: its facts, its trials and how far they came. Works while another process writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from cohort.core.errors import RunStateError
from cohort.runs.database import Database, open_database
from cohort.runs.facts import RunFacts
from cohort.runs.log import LOG_TABLES, RunLog, number
from cohort.runs.records import CheckpointRecord, TrialRecord
from cohort.runs.step_numbers import StepNumbers
from cohort.tuning.decisions import FAILED, Decision, DecisionKind
from cohort.tuning.trial_status import TrialStatus

__all__ = ["RunReader", "StepsTaken"]


class StepsTaken(NamedTuple):
    """What the recorded steps of a trial come to; ``last_loss`` is None before the first."""

    done: int
    tokens: int
    last_loss: float | None


_NO_STEPS = StepsTaken(0, 0, None)
# recorded at the end of a run, and by a callback that ends the search: they follow from the steps before them
_FACTS_OF_THE_END = ("finals", "test", "best_trial_id", "default_metrics")
_FACTS_OF_THE_SEARCH_END = ("search_ended", "search_ended_at")


class RunReader:
    """Reads one run; open it with :meth:`open` and close it, or use it with ``with``.

    Attributes:
        log: What happened, in its order.
        step_numbers: What single steps report besides their loss.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seconds_hidden = 0.0
        self.log = RunLog(database)
        self.step_numbers = StepNumbers(database)

    @classmethod
    def open(cls, path: Path) -> RunReader:
        """Open a run's database for reading only.

        Raises:
            RunStateError: the file is absent, damaged, not a run's, or of a later version.
        """
        return cls(open_database(path, read_only=True))

    def close(self) -> None:
        """Close the database; harmless when closed already."""
        self._database.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def snapshot(self) -> AbstractContextManager[None]:
        """Make all reads inside the block see one moment of the run, whatever another process writes meanwhile."""
        return self._database.snapshot()

    def run_seconds(self) -> float:
        """Return the run time up to the last thing recorded."""
        # a killed process recorded no run time at its end, but its log has the time of each row
        return max(self.log.last_seconds(), self.facts().run_seconds, self._seconds_hidden)

    def facts(self) -> RunFacts:
        """Return what the record says of the run as a whole."""
        rows = self._database.rows("SELECT key, value FROM facts")
        return RunFacts.from_stored({key: json.loads(text) for key, text in rows})

    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the checkpoints, latest last."""
        rows = self._database.rows("SELECT position, seconds, file_name, checksum FROM checkpoints ORDER BY position")
        return [
            CheckpointRecord(position=position, seconds=seconds, file_name=name, checksum=checksum)
            for position, seconds, name, checksum in rows
        ]

    def go_back_to_checkpoint(self) -> int:
        """Hide from the reads of this snapshot what a resume would drop; return how many steps that hides.

        A run without a checkpoint begins again, and keeps showing what it has.
        """
        checkpoints = self.checkpoints()
        if not checkpoints or self.log.last_position() == checkpoints[-1].position:
            return 0
        position = checkpoints[-1].position
        later = int(self._database.one("SELECT count(*) FROM steps WHERE position > ?", (position,)))
        # run time does not go back: the hidden steps were paid for
        self._seconds_hidden = self.run_seconds()
        ended_at = self.facts().search_ended_at
        later_facts = _FACTS_OF_THE_END + (() if ended_at is None or ended_at <= position else _FACTS_OF_THE_SEARCH_END)
        self._database.hide_after(position, log_tables=LOG_TABLES, facts=later_facts)
        return later

    def steps_taken(self) -> dict[int, StepsTaken]:
        """Return what the steps of each trial come to, by trial; one without a step has no entry."""
        rows = self._database.rows
        if self._database.one("SELECT count(*) FROM sqlite_master WHERE name = 'step_sums'"):
            # the last step of a trial is one look-up in the index
            query = (
                "SELECT step_sums.trial_id, step, step_sums.num_tokens, loss FROM step_sums CROSS JOIN steps "
                "WHERE steps.trial_id = step_sums.trial_id "
                "AND step = (SELECT max(step) FROM steps WHERE trial_id = step_sums.trial_id)"
            )
        else:
            # a run of an earlier release, all of whose steps are read. SQLite takes the bare column `loss` from the row
            # with the largest step. By the index, it would fetch each row from another page: three times as long
            query = "SELECT trial_id, max(step), sum(num_tokens), loss FROM steps NOT INDEXED GROUP BY trial_id"
        return {trial_id: StepsTaken(done, tokens, number(loss)) for trial_id, done, tokens, loss in rows(query)}

    def num_tokens(self) -> tuple[int, int]:
        """Return the tokens trained and evaluated so far; the evaluated ones without those of the final comparison."""
        trained = sum(taken.tokens for taken in self.steps_taken().values())
        return trained, self._database.one("SELECT coalesce(sum(num_tokens), 0) FROM evaluations")

    def planned_steps(self) -> dict[int, int]:
        """Return the optimizer steps of each trial's full training, by trial id."""
        return dict(self._database.rows("SELECT trial_id, planned_steps FROM trials ORDER BY trial_id"))

    def trials(self, *, steps_taken: Mapping[int, StepsTaken] | None = None) -> list[TrialRecord]:
        """Return every trial with how far it came, by trial id.

        Args:
            steps_taken: What the steps of each trial come to, where it is known; else all steps are read.
        """
        rows = self._database.rows
        if steps_taken is None:
            steps_taken = self.steps_taken()
        resident = {row[0] for row in rows("SELECT trial_id FROM residencies WHERE stop_position IS NULL")}
        evaluations = {(record.trial_id, record.step): record for record in self.log.evaluations()}
        evaluation_tokens: Counter[int] = Counter()
        for record in evaluations.values():
            evaluation_tokens[record.trial_id] += record.num_tokens
        # the study decides what is best: at equal values, by rules that the evaluations alone do not tell
        best, standing, protected = self._verdicts()
        records = []
        for trial_id, parameters, planned_steps, planned_tokens, seed in rows(
            "SELECT trial_id, parameters, planned_steps, planned_tokens, seed FROM trials ORDER BY trial_id"
        ):
            steps_done, tokens, last_loss = steps_taken.get(trial_id, _NO_STEPS)
            status, reason, message = _status(
                standing.get(trial_id), resident=trial_id in resident, steps_done=steps_done
            )
            best_step, best_value = best.get(trial_id, (None, None))
            found = None if best_step is None else evaluations.get((trial_id, best_step))
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
                    evaluation_tokens=evaluation_tokens[trial_id],
                    last_loss=last_loss,
                    best_step=None if found is None else best_step,
                    best_value=None if found is None else best_value,
                    best_loss=None if found is None else found.validation_loss,
                    best_metrics={} if found is None else found.metrics,
                    is_protected=trial_id in protected,
                )
            )
        return records

    def trial(self, trial_id: int) -> TrialRecord:
        """Return one trial.

        Raises:
            RunStateError: the run has no such trial.
        """
        records = {record.trial_id: record for record in self.trials()}
        if trial_id not in records:
            raise RunStateError(
                f"{self._database.path} has no trial {trial_id}; it has {len(records)}, see `cohort status`"
            )
        return records[trial_id]

    def _verdicts(self) -> tuple[dict[int, tuple[int, float]], dict[int, Decision], set[int]]:
        """Return what the decisions say: (step, value) of each trial's best, where each stands, which are protected."""
        metric = self.facts().metric
        best: dict[int, tuple[int, float]] = {}
        standing: dict[int, Decision] = {}
        protected: set[int] = set()
        for decision in (entry.decision for entry in self.log.decisions()):
            if decision.kind is DecisionKind.NEW_BEST:
                best[decision.trial_id] = (decision.step, decision.numbers[metric])
            else:
                standing[decision.trial_id] = decision
            # a trial that a person resumes is protected as well
            if decision.kind in (DecisionKind.PROTECT, DecisionKind.RESUME):
                protected.add(decision.trial_id)
        return best, standing, protected


def _status(decision: Decision | None, *, resident: bool, steps_done: int) -> tuple[TrialStatus, str, str]:
    if decision is not None and decision.kind is DecisionKind.FINISH:
        return TrialStatus.COMPLETED, str(decision.reason), ""
    if decision is not None and decision.kind is DecisionKind.STOP:
        failed = decision.reason == FAILED
        return (TrialStatus.FAILED if failed else TrialStatus.STOPPED), str(decision.reason), decision.message
    if resident:
        return TrialStatus.RUNNING, "", ""
    # a trial that has trained and is in no slot is parked: a rule took it out, or a run with fewer slots did
    return (TrialStatus.PARKED if steps_done else TrialStatus.WAITING), "", ""
