"""One task's part of an executor: its trials by their own numbers, on its own rows, whatever else is in the bank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor

from cohort.core.rank_work import RankWork
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import Prompt
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.training_executor import TrainingExecutor
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ExecutorShare"]

# the executor numbers trials of all tasks; each task has this many numbers, far more than a search proposes
_MOST_TRIALS = 10_000_000


class ExecutorShare:
    """What a task sees of an executor. Nothing here steps: residents of all tasks step together.

    Methods do what the executor's methods of the same name do, for the task's own trial ids.
    """

    def __init__(self, executor: TrainingExecutor, *, rows: TokenisedRows, place: int = 0) -> None:
        """Share ``executor``; ``place`` is the task's number among those that ever shared it, from 0."""
        self._executor, self._rows, self._place = executor, rows, place

    def recomputed_passes(self) -> int:
        """Return how many training passes used gradient checkpointing, of all tasks."""
        return self._executor.num_recomputed

    @property
    def work(self) -> tuple[RankWork, ...]:
        """What each rank has done so far, for all tasks; empty where there is one."""
        return self._executor.work

    def trials_by_rank(self) -> Counter[int]:
        """Return how many of the task's trials are on each rank; on the first one where ranks hold trials together."""
        return Counter(self._executor.rank_of(self.key(trial_id)) for trial_id in self.resident)

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

    def fits(self, spec: TrialSpec) -> bool:
        return self._executor.fits(spec)

    def load(self, spec: TrialSpec, state: TrialState | None = None, *, rank: int | None = None) -> int:
        # safe, as draws are keyed by the trial's seed and not by its number
        own = replace(spec, trial_id=self.key(spec.trial_id))
        return self._executor.load(own, state, rows=self._rows, rank=rank)

    def draw_ahead(self, specs: Iterable[TrialSpec]) -> None:
        """Draw what new trials begin with in a thread, where the device has other work meanwhile."""
        if isinstance(self._executor, LocalExecutor) and self._executor.launches_ahead:
            self._executor.fresh_weights.draw_ahead([(spec.adapter, spec.seed) for spec in specs])

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        return self._executor.state(self.key(trial_id), on_device=on_device)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        return self._executor.weights(self.key(trial_id), on_device=on_device)

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        return self._executor.unload(self.key(trial_id), on_device=on_device)

    def drop(self, trial_id: int) -> None:
        self._executor.drop(self.key(trial_id))

    def vacate(self) -> None:
        """Drop the task's residents."""
        for trial_id in self.resident:
            self.drop(trial_id)

    def slot_of(self, trial_id: int) -> int:
        return self._executor.slot_of(self.key(trial_id))

    def steps_of(self, trial_id: int) -> int:
        return self._executor.steps_of(self.key(trial_id))

    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]:
        # the executor answers by its own numbers
        keys = {self.key(trial_id): trial_id for trial_id in trial_ids}
        found = self._executor.evaluate(tuple(keys), rows=rows, row_ids=row_ids, objective=objective)
        return {keys[key]: loss for key, loss in found.items()}

    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss:
        return self._executor.evaluate_base(rows=rows, row_ids=row_ids, objective=objective)

    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
        own = [
            prompt if prompt.trial_id is None else replace(prompt, trial_id=self.key(prompt.trial_id))
            for prompt in prompts
        ]
        return self._executor.generate(own, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
