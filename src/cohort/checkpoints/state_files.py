"""The files of a run's trial states: where each lies, which are whole, and which are on their way.

A file's name says what it holds and after how many steps; a file is written once and never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from cohort.checkpoints.spare_files import SpareFiles
from cohort.checkpoints.state_memory import StateMemory
from cohort.checkpoints.state_writer import StateWriter
from cohort.checkpoints.stored_state import StoredState, StoredStateKind
from cohort.core.errors import RunStateError
from cohort.core.file_digest import file_digest
from cohort.runs.directory import RunDirectory
from cohort.training.trial import TrialState

__all__ = ["StateFiles"]


class StateFiles:
    """Writes states from memory to files, each whole or not at all; ``name in files`` tells whether one is secured.

    A secured file is on the disk with a SHA-256, so that a checkpoint may name it.
    """

    def __init__(self, directory: RunDirectory, *, memory: StateMemory) -> None:
        """Keep the files of ``directory``; what is written is taken from ``memory``."""
        self._directory, self._memory = directory, memory
        self._checksums: dict[StoredState, str] = {}
        self._writer = StateWriter()

    def __contains__(self, name: StoredState) -> bool:
        return name in self._checksums

    def path(self, name: StoredState) -> Path:
        return self._directory.root / name.relative_path

    def older(self, trial_id: int, *, at_most: int) -> list[StoredState]:
        """Return the states of a trial after ``at_most`` steps or fewer that are in files, the newest first."""
        # they are there while a checkpoint names them
        paths = self._directory.trial(trial_id).glob(f"{StoredStateKind.STATE}-*.safetensors")
        names = sorted(map(StoredState.of_path, paths), reverse=True)
        return [name for name in names if name.step <= at_most]

    def start(self, name: StoredState, *, is_behind: bool = False, is_flushed: bool = True) -> None:
        """Begin to write a state, or to secure what is written behind.

        Args:
            is_behind: Write it for no checkpoint: it is not secured.
            is_flushed: False secures it against the end of the process, not against that of the machine.
        """
        # a file that is there stays: the state of a trial after a step never changes
        if name in self._checksums:
            return
        path, kept = self.path(name), self._memory.get(name)
        # the disk may have room by now
        if kept is not None and (not self._writer.is_writing(path) or self._writer.has_failed(path)):
            tensors = kept.adapter.tensors if isinstance(kept, TrialState) else {"weights": kept}
            self._writer.start(path, tensors, step=name.step, is_behind=is_behind, is_flushed=is_flushed)
        elif not is_behind:
            assert self._writer.is_writing(path) or path.is_file(), "what is in no file is in memory"
            self._writer.start_securing(path, is_flushed=is_flushed)

    def write(self, name: StoredState) -> None:
        """Write a state, and wait until it is secured.

        Raises:
            StorageFullError: the disk is full; what was there before is untouched.
        """
        self.start(name)
        self.secure([name])

    def are_written(self, names: Iterable[StoredState]) -> bool:
        """Whether :meth:`secure` would wait for none of them."""
        return all(self._writer.is_written(path) for name in names if self._writer.is_writing(path := self.path(name)))

    def secure(self, names: Collection[StoredState]) -> dict[str, str]:
        """Wait for files that were begun; return the SHA-256 of each by relative path.

        Raises:
            StorageFullError: the disk is full; what was there before is untouched.
        """
        missing = {self.path(name): name for name in names if name not in self._checksums}
        for path, checksum in self._writer.secure(missing).items():
            self._checksums[missing[path]] = checksum
        return {name.relative_path: self._checksums[name] for name in names}

    def withdraw(self, names: Iterable[StoredState]) -> None:
        """Take back what was begun and has not begun to be written."""
        for name in names:
            if name not in self._checksums and self._writer.is_writing(self.path(name)):
                self._writer.withdraw(self.path(name))

    def is_behind(self, name: StoredState) -> bool:
        """Whether a state is written for no checkpoint."""
        return self._writer.is_behind(self.path(name))

    def spare_files(self, names: Iterable[StoredState]) -> SpareFiles:
        """Begin to write states for no checkpoint; return those on their way."""
        paths = {name: self.path(name) for name in names}
        for name in paths:
            self.start(name, is_behind=True)
        return SpareFiles(paths, memory=self._memory, writer=self._writer)

    def renew(self, name: StoredState) -> None:
        """Write a state again although a file of its name is there."""
        # A file of the same name from before a resume holds the same bits, but it may be damaged. One that this process
        # is writing is not.
        if not self._writer.is_writing(self.path(name)):
            self._checksums.pop(name, None)

    def restore(self, files: Mapping[str, str]) -> list[StoredState]:
        """Take over the files of a checkpoint, and forget all others.

        Args:
            files: SHA-256 by relative path.

        Raises:
            RunStateError: a file is missing or does not match its checksum; nothing is changed here.
        """
        restored: dict[StoredState, str] = {}
        for relative_path, checksum in files.items():
            path = self._directory.root / relative_path
            if not path.is_file():
                raise RunStateError(f"{path} is missing, but the checkpoint needs it")
            if file_digest(path).hex() != checksum:
                raise RunStateError(f"{path} does not match its checksum; it is damaged")
            restored[StoredState.of_path(path)] = checksum
        # only now: a damaged checkpoint changes nothing here, and the one before it is tried next
        self._checksums = restored
        return list(restored)

    def remove_except(self, wanted: Collection[str]) -> None:
        """Delete the files but those of the relative paths ``wanted``."""
        # a file that nothing names any more may still be on its way
        self._writer.settle(but={self._directory.root / path for path in wanted})
        for path in sorted(self._directory.trials.glob("*/*-*.safetensors")):
            if path.relative_to(self._directory.root).as_posix() not in wanted:
                path.unlink(missing_ok=True)

    def finish_all(self) -> bool:
        """Wait for all that was begun, whatever becomes of it; return whether there was anything to wait for."""
        return self._writer.finish_all()

    def close(self) -> None:
        """Stop writing, so that another process can go on in this directory."""
        self._writer.close()
