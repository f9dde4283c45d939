"""Where a trial goes on when it enters the bank, and the best checkpoint that it leaves there."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.adapters.adapter_state import AdapterState
from cohort.core.errors import RunStateError
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun
from cohort.training.checkpoint import DamagedStateError
from cohort.training.trial import TrialSpec, TrialState
from cohort.tuning.study import Study

__all__ = ["TrialStarts"]


class TrialStarts:
    """The states that trials of one task begin with or go on from."""

    def __init__(self, run: OpenRun, *, study: Study, share: ExecutorShare, specs: Mapping[int, TrialSpec]) -> None:
        """Join the parts; ``specs`` may grow."""
        self._run, self._study, self._share, self._specs = run, study, share, specs

    def steps_known(self, trial_id: int) -> int:
        """Return how many steps of a trial are on record."""
        return self._study.trajectory(trial_id).num_steps

    def first(self, trial_id: int) -> TrialState | None:
        """Return the state before a trial's first step; None for one that begins with weights of its own.

        Raises:
            RunStateError: the weights of the other trial that it begins with are gone.
        """
        if not self._study.has_foreign_start(trial_id):
            return None
        weights_rD = self._run.state_store.start(trial_id)
        # never with weights of its own: it would train another adapter than the one that was asked for
        if weights_rD is None:
            folder = self._run.directory.trial(trial_id)
            raise RunStateError(f"the weights that trial {trial_id} begins with are gone from {folder}")
        return TrialState(adapter=AdapterState(weights=weights_rD))

    def current(self, trial_id: int) -> tuple[TrialState | None, tuple[DamagedStateError, ...]]:
        """Return where a trial goes on, and the damage that was found; None for its first step."""
        states = self._run.state_store
        states.reclaim_state(trial_id)
        at_most = self.steps_known(trial_id)
        if (lost := self.lost_best(trial_id)) is not None:
            # from a state before its best checkpoint, or its first step, it comes by that once more; a trial that left
            # the bank on its way there goes on where it stood
            at_most = min(at_most, lost - 1)
            if (step := states.state_step(trial_id)) is not None and step > at_most:
                states.forget_state(trial_id)
        state, damages = states.last_good_state(trial_id, at_most=at_most)
        return (self.first(trial_id) if state is None else state), damages

    def lost_best(self, trial_id: int) -> int | None:
        """Return the step of a best checkpoint that is on record and nowhere else; None where there is none.

        A trial that lost has one, if the run was killed before it was written; a person may still resume the trial.
        """
        best = self._study.best_of(trial_id)
        return None if best is None or self._run.state_store.best_step(trial_id) is not None else best.step

    def keep_best(self, trial_id: int, *, step: int) -> None:
        """Keep the weights that a resident trial has now as its best checkpoint."""
        states = self._run.state_store
        # on the device while there is room: 60 states of an 8B sweep are 70 GB to carry to the host and back
        weights_rD = self._share.weights(trial_id, on_device=states.keeps_on_device)
        states.put_best(trial_id, weights_rD, step=step)

    def keep_lost_bests(self) -> None:
        """Keep the weights of residents that have come to a lost best checkpoint again."""
        for trial_id in self._share.resident:
            if self.lost_best(trial_id) == (step := self._share.steps_of(trial_id)):
                self.keep_best(trial_id, step=step)

    def fits(self, trial_id: int) -> bool:
        """Whether the bank has room for a trial."""
        return self._share.fits(self._specs[trial_id])

    def load_first(self, trial_id: int) -> None:
        """Make a trial resident before its first step."""
        self._share.load(self._specs[trial_id], self.first(trial_id))
