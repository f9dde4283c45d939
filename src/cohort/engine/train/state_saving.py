"""When the state of a task is saved, and what of that trials wait for."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from cohort.checkpoints.checkpoints import BegunCheckpoint, begin_checkpoint
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.open_run import OpenRun

__all__ = ["StateSaving"]

# A checkpoint that is due waits for the last one where training is over in this share of the least pause: its states,
# three times the weights, would be written for a few steps, and the results wait for the same disk.
ENDING_SHARE = 0.25


class StateSaving:
    """Saves one task's checkpoints: at once where somebody waits for one, else while trials train on.

    A checkpoint that is due is begun at a step boundary, where the states of residents are copied, and completed at a
    later one, when its files are written. A kill in between goes back to the one before.
    """

    def __init__(self, run: OpenRun, *, share: ExecutorShare) -> None:
        """Save what ``run`` and its part of the executor hold; the first is due after ``checkpoint_seconds``."""
        self._run, self._share = run, share
        self._saved_at, self._pause = run.clock.monotonic(), run.options.checkpoint_seconds
        self._begun: BegunCheckpoint | None = None
        self._began_at = self._spent = 0.0

    def restored(self) -> None:
        """Count from now on: the state is that of a checkpoint."""
        self._saved_at = self._run.clock.monotonic()

    def save(self, *, vacated: Sequence[int], bests_of: Collection[int] | None) -> None:
        """Save a checkpoint now; one that was begun is not completed.

        Raises:
            StorageFullError: the disk is full; the last checkpoint is whole.
        """
        self.begin(vacated=vacated, bests_of=bests_of)
        self._complete()

    def begin(self, *, vacated: Sequence[int], bests_of: Collection[int] | None, is_flushed: bool = True) -> None:
        """Begin to save a checkpoint that :meth:`complete` completes; one that was begun before is not completed.

        Args:
            vacated, bests_of, is_flushed: As of a checkpoint.
        """
        if self._begun is not None:
            self._run.state_store.withdraw(self._begun.states)
            self._begun = None
        self._begin(vacated=vacated, bests_of=bests_of, is_flushed=is_flushed)

    def complete(self) -> None:
        """Complete what was begun, if anything was.

        Raises:
            StorageFullError: the disk is full; the last checkpoint is whole.
        """
        if self._begun is not None:
            self._complete()

    def save_when_due(
        self, *, vacated: Sequence[int], bests_of: Callable[[], Collection[int] | None], seconds_left: float = math.inf
    ) -> None:
        """Complete what was begun once its files are there; begin if the last checkpoint is long enough ago.

        Args:
            vacated, bests_of: As of a checkpoint.
            seconds_left: In which training is over, where that is known.

        Raises:
            StorageFullError: the disk is full; the last checkpoint is whole.
        """
        if self._begun is not None:
            if self._run.state_store.are_written(self._begun.states):
                self._complete()
        elif not self._run.options.checkpoint_seconds:
            # after each step: a caller that asks for that wants the last one saved
            self.save(vacated=vacated, bests_of=bests_of())
        elif self._is_due(seconds_left):
            self._begin(vacated=vacated, bests_of=bests_of())
            # what was written ahead goes on after what the checkpoint names
            self._run.state_store.write_spares()

    def _is_due(self, seconds_left: float) -> bool:
        late = self._run.clock.monotonic() - self._saved_at - self._pause
        most = ENDING_SHARE * self._run.options.checkpoint_seconds
        # put off only once: an end that does not come is waited for no longer
        return late >= most or (late >= 0 and seconds_left > most - late)

    def _begin(self, *, vacated: Sequence[int], bests_of: Collection[int] | None, is_flushed: bool = True) -> None:
        run, resident = self._run, self._share.resident
        self._began_at = run.clock.monotonic()
        # before the copy of the database that the checkpoint makes, so that a run that goes on from it has them
        run.store.add_seconds(run.time_spent.take())
        for trial_id in resident:
            # a copy on the device takes a moment, and the writers read it there
            state = self._share.state(trial_id, on_device=run.state_store.keeps_on_device)
            run.state_store.put_state(trial_id, state)
        self._begun = begin_checkpoint(
            run.store, run.state_store, resident=resident, vacated=vacated, bests_of=bests_of, is_flushed=is_flushed
        )
        self._spent = run.clock.monotonic() - self._began_at

    def _complete(self) -> None:
        run, begun = self._run, self._begun
        assert begun is not None, "only what was begun is completed"
        began = run.clock.monotonic()
        try:
            begun.complete(run.store, run.state_store, directory=run.directory)
        except Exception:
            # after Ctrl-C it may still be completed; after an error it may not
            self._begun = None
            raise
        self._begun = None
        # the bank has them: copies in memory would only leave less room for parked trials
        for trial_id in set(begun.resident).intersection(self._share.resident):
            run.state_store.release_state(trial_id)
        self._saved_at = run.clock.monotonic()
        waited = self._spent + self._saved_at - began
        # half of the time for others who use the disk, where files take longer than the least pause
        written = self._saved_at - self._began_at
        self._pause = max(run.options.checkpoint_seconds, waited / run.options.checkpoint_share, written)
