"""Trials leave the bank: what becomes of their states, and which batch sizes they leave room for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun
from cohort.engine.train.trial_starts import TrialStarts
from cohort.training.trial import TrialSpec

__all__ = ["Departures", "Keep"]


class Keep(Enum):
    """What becomes of the state of a trial that leaves the bank."""

    ALWAYS = auto()
    # of use only if a person resumes or protects the trial; without it, its steps are trained again
    WHILE_THERE_IS_ROOM = auto()
    NEVER = auto()


class Departures:
    """Takes trials of one task out of the bank.

    Attributes:
        vacated: Batch sizes of trials that left and that no other has followed yet.
    """

    def __init__(
        self, run: OpenRun, *, share: ExecutorShare, starts: TrialStarts, specs: Mapping[int, TrialSpec]
    ) -> None:
        """Join the parts; ``specs`` may grow."""
        self._run, self._share, self._starts, self._specs = run, share, starts, specs
        self.vacated: list[int] = []

    def leave(self, trial_id: int, *, keep: Keep) -> None:
        """Take a trial out of the bank, and do with its state what ``keep`` says."""
        states = self._run.state_store
        if self._share.steps_of(trial_id) > self._starts.steps_known(trial_id):
            # it ended within a window of steps: its state is further than its record
            keep = Keep.NEVER
        if keep is Keep.ALWAYS:
            states.put_state(trial_id, self._share.unload(trial_id, on_device=states.keeps_on_device))
        elif keep is Keep.WHILE_THERE_IS_ROOM and states.has_room_for_spares:
            states.put_spare(trial_id, self._share.unload(trial_id, on_device=states.keeps_on_device))
        else:
            states.forget_state(trial_id)
            self._share.drop(trial_id)
        self._run.store.trial_left(trial_id)
        # admission prefers trials of the batch sizes that left: the pack keeps its shape
        self.vacated.append(self._specs[trial_id].batch_size)
