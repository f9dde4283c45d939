"""One task's part of an executor: its trials by their own numbers, on its own rows, whatever else is in the bank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.calls import Call
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.training_executor import Manner, Spread, TrainingExecutor, TrialExecutor
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ExecutorShare"]

# the executor numbers trials of all tasks; each task has this many numbers, far more than a search proposes
_MOST_TRIALS = 10_000_000
# manners whose first argument names trials
_OF_TRIALS = (Spread.OWNER, Spread.TRIALS, Spread.ITEMS)


class ExecutorShare(TrialExecutor):
    """What a task sees of an executor. Nothing here steps: residents of all tasks step together."""

    def __init__(
        self,
        executor: TrainingExecutor,
        *,
        rows: TokenisedRows,
        place: int = 0,
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Share ``executor``.

        Args:
            place: The task's number among those that ever shared it, from 0.
            turn: Held while the base model computes, where others compute with it, too.
        """
        self._executor, self._rows, self._place, self._turn = executor, rows, place, turn

    def call(self, call: Call, manner: Manner) -> Any:
        """Call the executor by its numbers of the task's trials, and answer by the task's."""
        arguments = dict(call.arguments)
        if manner.spread in _OF_TRIALS:
            name = next(iter(arguments))
            arguments[name] = self._by_key(arguments[name])
        # what reads or writes the bank alone needs no base model
        with nullcontext() if manner.passes is None else self._turn():
            found = getattr(self._executor, call.verb)(**arguments)
        if manner.spread is Spread.TRIALS:
            return {key % _MOST_TRIALS: answer for key, answer in found.items()}
        return found

    @property
    def num_recomputed(self) -> int:
        """Training passes of all tasks that used gradient checkpointing."""
        return self._executor.num_recomputed

    @property
    def work(self) -> tuple[RankWork, ...]:
        """What each rank has done so far, for all tasks; empty where there is one."""
        return self._executor.work

    @property
    def planned_windows(self) -> dict[str, int]:
        """Windows of a pipeline by what planned them."""
        return self._executor.planned_windows

    def trials_by_rank(self) -> Counter[int]:
        """Return how many of the task's trials are on each rank; on the first one where ranks hold trials together."""
        return Counter(self.rank_of(trial_id) for trial_id in self.resident)

    def key(self, trial_id: int) -> int:
        """Return the number that a trial has in the executor."""
        return self._place * _MOST_TRIALS + trial_id

    def trial_of(self, key: int) -> int | None:
        """Return the trial that has a number in the executor; None if it is another task's."""
        return key % _MOST_TRIALS if key // _MOST_TRIALS == self._place else None

    @property
    def resident(self) -> tuple[int, ...]:
        """The task's trials in the bank, in slot order."""
        found = (self.trial_of(key) for key in self._executor.resident)
        return tuple(trial_id for trial_id in found if trial_id is not None)

    def slot_of(self, trial_id: int) -> int:
        return self._executor.slot_of(self.key(trial_id))

    def rank_of(self, trial_id: int) -> int:
        return self._executor.rank_of(self.key(trial_id))

    def steps_of(self, trial_id: int) -> int:
        return self._executor.steps_of(self.key(trial_id))

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        """Make a trial resident, on the task's rows where ``rows`` is None."""
        # safe, as draws are keyed by the trial's seed and not by its number
        own = replace(spec, trial_id=self.key(spec.trial_id))
        with self._turn():
            return self._executor.load(own, state, rows=self._rows if rows is None else rows, rank=rank)

    def vacate(self) -> None:
        """Drop the task's residents."""
        for trial_id in self.resident:
            self.drop(trial_id)

    def draw_ahead(self, specs: Iterable[TrialSpec]) -> None:
        """Draw what new trials begin with in a thread, where the device has other work meanwhile."""
        if isinstance(self._executor, LocalExecutor) and self._executor.launches_ahead:
            # it may wait for the device, which no other may be recording on meanwhile
            with self._turn():
                self._executor.fresh_weights.draw_ahead([(spec.adapter, spec.seed) for spec in specs])

    def _by_key(self, named: Any) -> Any:
        """Return a trial id, ids, values by id or items with an id as the executor numbers them."""
        if isinstance(named, int):
            return self.key(named)
        if isinstance(named, Mapping):
            return {self.key(trial_id): value for trial_id, value in named.items()}
        return [self._item_by_key(item) for item in named]

    def _item_by_key(self, item: Any) -> Any:
        if isinstance(item, int):
            return self.key(item)
        return item if item.trial_id is None else replace(item, trial_id=self.key(item.trial_id))
