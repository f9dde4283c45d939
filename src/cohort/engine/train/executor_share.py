"""One task's part of an executor: its trials by their own numbers, on its own rows, whoever else is in the bank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.data.tokenised import TokenisedRows
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluate import EvaluationLoss
from cohort.training.executor import Executor
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["ExecutorShare"]

# trials of a task; nobody trains as many
_MOST_TRIALS = 10_000_000


class ExecutorShare:
    """What a task sees of an executor. Nothing here steps: residents of all tasks step together."""

    def __init__(self, executor: Executor, *, rows: TokenisedRows, place: int = 0) -> None:
        """Share ``executor``.

        Args:
            executor: Of one task or several.
            rows: What the task's trials train on.
            place: Of the task among those that ever shared the executor, from 0.
        """
        self._executor, self._rows, self._place = executor, rows, place

    @property
    def bank(self) -> AdapterBank:
        """The bank, of all tasks."""
        return self._executor.bank

    @property
    def memory(self) -> DeviceMemory:
        """The device's memory, of all tasks."""
        return self._executor.memory

    def recomputed_passes(self) -> int:
        """Return how many training passes were recomputed, of all tasks."""
        return self._executor.gradient_checkpointing.num_passes

    def make_room(self) -> bool:
        """Give up the next of what is kept on the device only to save time; False when there was nothing."""
        return any(relief() for relief in self._executor.reliefs)

    def key(self, trial_id: int) -> int:
        """Return the number that a trial has in the executor."""
        return self._place * _MOST_TRIALS + trial_id

    def trial_of(self, key: int) -> int | None:
        """Return the trial that has a number in the executor; None where it is another task's."""
        return key % _MOST_TRIALS if key // _MOST_TRIALS == self._place else None

    @property
    def resident(self) -> tuple[int, ...]:
        """The task's trials in the bank, in slot order."""
        found = (self.trial_of(key) for key in self._executor.resident)
        return tuple(trial_id for trial_id in found if trial_id is not None)

    def fits(self, spec: TrialSpec) -> bool:
        """Tell whether the bank has room for another trial."""
        return self._executor.fits(spec)

    def load(self, spec: TrialSpec, state: TrialState | None = None) -> int:
        """Make a trial resident, as :meth:`Executor.load` does."""
        # the number of a trial is no part of what it computes
        return self._executor.load(replace(spec, trial_id=self.key(spec.trial_id)), state, rows=self._rows)

    def state(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Return a copy of where a resident trial stands."""
        return self._executor.state(self.key(trial_id), on_device=on_device)

    def weights(self, trial_id: int, *, on_device: bool = False) -> Tensor:
        """Return a copy of a resident trial's weights [r, D]."""
        return self._executor.weights(self.key(trial_id), on_device=on_device)

    def unload(self, trial_id: int, *, on_device: bool = False) -> TrialState:
        """Take a trial out of the bank and return where it stands."""
        return self._executor.unload(self.key(trial_id), on_device=on_device)

    def drop(self, trial_id: int) -> None:
        """Take a trial out of the bank and forget it."""
        self._executor.drop(self.key(trial_id))

    def slot_of(self, trial_id: int) -> int:
        """Return the slot of a resident trial."""
        return self._executor.slot_of(self.key(trial_id))

    def steps_of(self, trial_id: int) -> int:
        """Return the optimizer steps that a resident trial's state has seen."""
        return self._executor.steps_of(self.key(trial_id))

    def evaluate(
        self, trial_ids: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int, EvaluationLoss]:
        """Return the validation loss of resident trials of the task, packed, by trial id."""
        keys = {self.key(trial_id): trial_id for trial_id in trial_ids}
        found = self._executor.evaluate(tuple(keys), rows=rows, row_ids=row_ids)
        return {keys[key]: loss for key, loss in found.items()}

    def evaluate_base(self, *, rows: TokenisedRows, row_ids: Sequence[int]) -> EvaluationLoss:
        """Return the validation loss of the frozen model itself."""
        return self._executor.evaluate_base(rows=rows, row_ids=row_ids)
