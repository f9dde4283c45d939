"""Evaluations that follow a step: launched right behind it, before the host reads what the step gave.

While the host takes in a step, decides and records, the device would wait; most trials that are due after a step are
evaluated whatever it gave. What was launched is used only for exactly the evaluation that is asked for, on states that
have not changed: an evaluation that comes otherwise is launched as it comes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from cohort.data.tokenised import TokenisedRows
from cohort.training.evaluation_loss import LaunchedEvaluation
from cohort.training.objectives.objective import Objective
from cohort.training.step_samples import Resident

__all__ = ["EvaluationAhead", "EvaluationInputs"]

# after this many in a row that were not asked for, no more are launched
MOST_MISSED = 3


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """What an evaluation reads, but for the trials.

    Attributes:
        rows, row_ids: The evaluation rows.
        objective: What all trials are evaluated by; None takes each trial's own.
    """

    rows: TokenisedRows
    row_ids: tuple[int, ...]
    objective: Objective | None

    def is_as(self, other: EvaluationInputs) -> bool:
        """Return whether both read the same."""
        return self.rows is other.rows and self.row_ids == other.row_ids and self.objective == other.objective


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pending:
    """A launched evaluation: of which trials, after how many steps, on what."""

    steps: Mapping[int, int]
    what: EvaluationInputs
    slots: Mapping[int, int]
    launched: LaunchedEvaluation


class EvaluationAhead:
    """The evaluations of one executor that are launched before they are asked for.

    Attributes:
        is_used: Whether any is.
    """

    def __init__(self, *, is_used: bool) -> None:
        """Launch none before one has come whose rows the next will read as well."""
        self.is_used = is_used
        self._expected: Sequence[Collection[int]] = ()
        # by the training rows of a task, which are kept so that no other object takes their number
        self._last: dict[int, tuple[TokenisedRows, EvaluationInputs]] = {}
        self._pending: list[_Pending] = []
        self._num_missed = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of all that is launched and was not asked for yet."""
        return sum(len(entry.sample.tokens) for pending in self._pending for entry in pending.launched.entries)

    def expect(self, groups: Sequence[Collection[int]]) -> None:
        """Say which trials will be evaluated together after the next step."""
        self._expected = groups

    def launch(
        self,
        residents: Mapping[int, Resident],
        launch: Callable[[Mapping[int, Objective], EvaluationInputs], LaunchedEvaluation],
    ) -> None:
        """Launch what is expected of ``residents``, whose update is launched but not counted yet."""
        expected, self._expected = self._expected, ()
        self._missed()
        # rows of tasks that have left would stay in memory
        present = {id(resident.rows) for resident in residents.values()}
        self._last = {key: kept for key, kept in self._last.items() if key in present}
        for group in expected if self.is_used else ():
            trials = {trial_id: residents[trial_id] for trial_id in sorted(group) if trial_id in residents}
            if not trials or len(trials) < len(group):
                continue
            last = self._last.get(id(next(iter(trials.values())).rows))
            if last is None:
                continue
            what = last[1]
            # an error comes again where the evaluation is asked for, and is raised there
            with contextlib.suppress(Exception):
                launched = launch(
                    {resident.slot: what.objective or resident.spec.objective for resident in trials.values()}, what
                )
                self._pending.append(
                    _Pending(
                        steps={trial_id: resident.step + 1 for trial_id, resident in trials.items()},
                        what=what,
                        slots={trial_id: resident.slot for trial_id, resident in trials.items()},
                        launched=launched,
                    )
                )

    def take(self, residents: Mapping[int, Resident], what: EvaluationInputs) -> LaunchedEvaluation | None:
        """Return what was launched for exactly this evaluation of ``residents``; None if nothing was."""
        for resident in residents.values():
            self._last[id(resident.rows)] = resident.rows, what
        steps = {trial_id: resident.step for trial_id, resident in residents.items()}
        slots = {trial_id: resident.slot for trial_id, resident in residents.items()}
        for pending in self._pending:
            if pending.steps == steps and pending.slots == slots and pending.what.is_as(what):
                self._pending.remove(pending)
                self._num_missed = 0
                return pending.launched
        return None

    def clear(self) -> None:
        """Forget what is launched: the weights of some trial change otherwise than by the step that it follows."""
        self._pending.clear()

    def _missed(self) -> None:
        if self._pending:
            self._num_missed += 1
            self._pending.clear()
        if self._num_missed >= MOST_MISSED:
            self.is_used = False
