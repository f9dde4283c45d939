"""Keeps trials' states that are out of the bank: on the device, in host memory and in files, each within a budget.

Parking a trial and checkpointing a run use the same files, which never change, so a checkpoint is a list of names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import Tensor

from cohort.checkpoints.spare_files import SpareFiles
from cohort.checkpoints.state_files import StateFiles
from cohort.checkpoints.state_memory import HOST, StateMemory
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.runs.directory import RunDirectory
from cohort.training.checkpoint import (
    DamagedStateError,
    deserialise_state,
    is_whole_state,
    read_weights,
)
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.trial import TrialState

__all__ = ["TrialStateStore"]


class TrialStateStore:
    """Keeps at most one state, one best checkpoint and one beginning of each trial."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        memory_budget_bytes: int,
        device_budget_bytes: int = 0,
        spares_on_host: bool = True,
        optimizer: Optimizer = DEFAULT_OPTIMIZER,
    ) -> None:
        """Keep tensors where they come from while there is room.

        Args:
            directory: The run's.
            memory_budget_bytes: Most host memory; beyond it the oldest move to files.
            device_budget_bytes: Most memory of each GPU; beyond it the oldest there move to the host.
            spares_on_host: Whether a trial's state may be carried to the host only in case that a person resumes it:
                not from a GPU, where that takes longer than it is likely to save.
            optimizer: The trials'; it names the moments that a state file holds.
        """
        self._moments = tuple(moment.name for moment in optimizer.moments)
        self._memory_budget_bytes = memory_budget_bytes
        self._spares_on_host = spares_on_host
        self._in_memory = StateMemory(device_budget_bytes=device_budget_bytes)
        self._files = StateFiles(directory, memory=self._in_memory)
        self._newest: dict[tuple[int, StoredStateKind], StoredState] = {}

    @property
    def keeps_on_device(self) -> bool:
        return self._in_memory.keeps_on_device

    def leave_device(self) -> bool:
        """Move everything to the host, now and in future; return whether there was anything."""
        did_leave = self._in_memory.leave_devices()
        # what is being written is held where it was until it is in its file
        return self._files.finish_all() or did_leave

    def limit_device(self, num_bytes: int) -> None:
        """Let states take ``num_bytes`` of each GPU from now on, where they may take any."""
        self._in_memory.limit_devices(num_bytes)
        self._make_room()

    @property
    def has_room_for_spares(self) -> bool:
        """Whether the state of a resident trial that is not needed any more may be kept where it is copied cheaply."""
        if self.keeps_on_device:
            return self._in_memory.has_room_on_devices
        return self._spares_on_host and self._in_memory.num_bytes(HOST) < self._memory_budget_bytes

    def put_spare(self, trial_id: int, state: TrialState) -> None:
        """Keep the state of a trial that a rule stopped, as long as there is room for it."""
        self.forget_state(trial_id)
        self._in_memory.put(StoredState(trial_id, StoredStateKind.SPARE, state.step), state)
        self._make_room()

    def spare_state(self, trial_id: int) -> None:
        """Keep the state of a parked trial that ended only as long as there is room for it."""
        name = self._newest.get((trial_id, StoredStateKind.STATE))
        kept = None if name is None else self._in_memory.get(name)
        self.forget_state(trial_id)
        if isinstance(kept, TrialState):
            self.put_spare(trial_id, kept)

    def reclaim_state(self, trial_id: int) -> bool:
        """Keep the state of a trial that goes on like that of a parked one; return False if it is gone."""
        if (trial_id, StoredStateKind.STATE) in self._newest:
            return True
        spares = [name for name in self._in_memory if (name.trial_id, name.kind) == (trial_id, StoredStateKind.SPARE)]
        for name in spares:
            state = self._in_memory.pop(name)
            assert isinstance(state, TrialState), "put_spare() keeps states alone"
            self.put_state(trial_id, state)
        return bool(spares)

    def put_state(self, trial_id: int, state: TrialState) -> None:
        """Keep the state of a trial that leaves the bank instead of an earlier one."""
        best = StoredState(trial_id, StoredStateKind.BEST, state.step)
        if best in self._in_memory:
            # the best checkpoint is of the same step: sharing the state's weights saves a copy
            self._in_memory.put(best, state.adapter.weights)
        self._put(StoredState(trial_id, StoredStateKind.STATE, state.step), state)

    def put_best(self, trial_id: int, weights_rD: Tensor, *, step: int) -> None:
        self._put(StoredState(trial_id, StoredStateKind.BEST, step), weights_rD)

    def put_start(self, trial_id: int, weights_rD: Tensor) -> None:
        """Keep the weights that a trial begins with."""
        self._put(StoredState(trial_id, StoredStateKind.START, 0), weights_rD)

    def start(self, trial_id: int) -> Tensor | None:
        """Return the weights [r, D] that a trial begins with; None for one that begins with weights of its own.

        Raises:
            DamagedStateError: its file is damaged.
        """
        found = self._weights(trial_id, StoredStateKind.START)
        return None if found is None else found[0]

    def state(self, trial_id: int) -> TrialState | None:
        """Return the state of a trial that is out of the bank; None for one that has not started.

        Raises:
            DamagedStateError: its file is damaged.
        """
        name = self._newest.get((trial_id, StoredStateKind.STATE))
        if name is None:
            return None
        kept = self._in_memory.get(name)
        return (
            kept if isinstance(kept, TrialState) else deserialise_state(self._files.path(name), moments=self._moments)
        )

    def last_good_state(
        self, trial_id: int, *, at_most: int
    ) -> tuple[TrialState | None, tuple[DamagedStateError, ...]]:
        """Return the newest undamaged state of a trial after ``at_most`` steps or fewer, and the damage that was found.

        None means that the trial has to start again. An older state is no loss: the same steps give the same bits.
        """
        damages = []
        newest = self._newest.get((trial_id, StoredStateKind.STATE))
        try:
            if newest is not None:
                return self.state(trial_id), ()
        except DamagedStateError as error:
            damages.append(error)
            self.forget_state(trial_id)
        # ``at_most`` skips files of steps that the log has dropped
        for name in self._files.older(trial_id, at_most=at_most):
            if name == newest:
                continue
            try:
                return deserialise_state(self._files.path(name), moments=self._moments), tuple(damages)
            except DamagedStateError as error:
                damages.append(error)
        return None, tuple(damages)

    def best(self, trial_id: int) -> tuple[Tensor, int] | None:
        """Return weights [r, D], wherever they are kept, and step of a trial's best checkpoint; None before its first.

        Raises:
            DamagedStateError: its file is damaged.
        """
        return self._weights(trial_id, StoredStateKind.BEST)

    def best_step(self, trial_id: int) -> int | None:
        """Return the step of a trial's best checkpoint; None where it is not here."""
        return self._step(trial_id, StoredStateKind.BEST)

    def state_step(self, trial_id: int) -> int | None:
        """Return the step of the state of a trial that is out of the bank; None where there is none."""
        return self._step(trial_id, StoredStateKind.STATE)

    def _step(self, trial_id: int, kind: StoredStateKind) -> int | None:
        name = self._newest.get((trial_id, kind))
        return None if name is None else name.step

    def forget_best(self, trial_id: int) -> None:
        """Forget the best checkpoint of a trial that lost; its file goes with the checkpoints that name it."""
        name = self._newest.pop((trial_id, StoredStateKind.BEST), None)
        if name is not None:
            self._in_memory.forget(name)
            # a checkpoint that was begun still names the others
            if self._files.is_behind(name):
                self._files.withdraw([name])

    def write_ahead(self, trial_id: int) -> None:
        """Begin to write the best checkpoint of a trial that has ended, so that no checkpoint has to wait for it."""
        name = self._newest.get((trial_id, StoredStateKind.BEST))
        if name is not None and name in self._in_memory:
            self._files.start(name, is_behind=True)

    def write_spares(self) -> SpareFiles:
        """Begin to write the best checkpoints that the last checkpoint does not name; return those on their way."""
        return self._files.spare_files(name for name in self._spares() if name in self._in_memory)

    def spares(self) -> list[str]:
        """Return the paths of the best checkpoints that the last checkpoint does not name, written or not."""
        return [name.relative_path for name in self._spares()]

    def _spares(self) -> list[StoredState]:
        bests = (name for name in self._newest.values() if name.kind is StoredStateKind.BEST)
        return sorted(name for name in bests if name not in self._files)

    def _weights(self, trial_id: int, kind: StoredStateKind) -> tuple[Tensor, int] | None:
        name = self._newest.get((trial_id, kind))
        if name is None:
            return None
        kept = self._in_memory.get(name)
        return (kept, name.step) if isinstance(kept, Tensor) else read_weights(self._files.path(name))

    def forget_state(self, trial_id: int) -> None:
        """Forget the state of a trial that has ended; its best checkpoint stays."""
        name = self._newest.pop((trial_id, StoredStateKind.STATE), None)
        if name is not None:
            self._in_memory.forget(name)

    def release_state(self, trial_id: int) -> None:
        """Free the memory of an old state of a resident trial; its file stays, since a checkpoint may need it."""
        name = self._newest.get((trial_id, StoredStateKind.STATE))
        if name is None:
            return
        self._in_memory.forget(name)
        if name not in self._files:
            # it was never in a file, so now it is nowhere
            del self._newest[trial_id, StoredStateKind.STATE]

    def flush(self, *, bests_of: Collection[int] | None = None) -> dict[str, str]:
        """Write what is only in memory; return the SHA-256 of every file by relative path.

        Args:
            bests_of: Trials whose best checkpoints are meant; None: all. Those of others that are in no file yet are
                neither waited for nor named: :meth:`write_spares` writes them.

        Raises:
            StorageFullError: the disk is full; what was there before is untouched.
        """
        return self.files_of(self.start_files(bests_of=bests_of))

    def start_files(self, *, bests_of: Collection[int] | None = None, is_flushed: bool = True) -> list[StoredState]:
        """Begin to write what :meth:`flush` writes, and return its names.

        Args:
            bests_of: As of :meth:`flush`.
            is_flushed: False does not wait for the disk.
        """
        spares = set() if bests_of is None else {name for name in self._spares() if name.trial_id not in bests_of}
        # what is written ahead must not keep the others waiting
        self._files.withdraw(spares)
        names = sorted(set(self._newest.values()) - spares)
        for name in names:
            self._files.start(name, is_flushed=is_flushed)
        return names

    def are_written(self, names: Iterable[StoredState]) -> bool:
        """Whether :meth:`files_of` would find all of the files there."""
        return self._files.are_written(names)

    def files_of(self, names: Collection[StoredState]) -> dict[str, str]:
        """Wait for files that were begun; return the SHA-256 of each by relative path.

        Raises:
            StorageFullError: the disk is full; what was there before is untouched.
        """
        return self._files.secure(names)

    def withdraw(self, names: Iterable[StoredState]) -> None:
        """Take back what was begun for a checkpoint that is not to be."""
        self._files.withdraw(names)

    def restore(self, files: Mapping[str, str], *, spares: Iterable[str] = ()) -> None:
        """Take over the files of a checkpoint.

        Args:
            files: By relative path, with their SHA-256.
            spares: The relative paths of best checkpoints that it left to :meth:`write_spares`; those that are there
                and whole are taken over, too.

        Raises:
            RunStateError: a file is missing or does not match its checksum.
        """
        restored = self._files.restore(files)
        # a machine that stopped may have torn what nothing waited for: it would be named as whole, and a clone read it
        there = [name for name in map(StoredState.of_path, spares) if is_whole_state(self._files.path(name))]
        self._newest = {(name.trial_id, name.kind): name for name in (*restored, *there)}

    def remove_files_except(self, kept: Iterable[str]) -> None:
        """Delete the state files that neither ``kept`` nor the newest states name."""
        self._files.remove_except({*kept, *(name.relative_path for name in self._newest.values())})

    def close(self) -> None:
        """Stop writing, so that another process can go on in this directory."""
        self._files.close()

    def _put(self, name: StoredState, value: TrialState | Tensor) -> None:
        before = self._newest.get((name.trial_id, name.kind))
        if before is not None:
            self._in_memory.forget(before)
        self._newest[name.trial_id, name.kind] = name
        self._in_memory.put(name, value)
        self._files.renew(name)
        self._make_room()

    def _make_room(self) -> None:
        """Bring what is kept within the budgets: spares are dropped, then the oldest move on."""
        self._in_memory.make_room_on_devices()
        while self._in_memory.num_bytes(HOST) > self._memory_budget_bytes:
            oldest = self._in_memory.oldest_on_host()
            if oldest.kind is not StoredStateKind.SPARE:
                self._files.write(oldest)
            self._in_memory.forget(oldest)
