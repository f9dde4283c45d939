"""Best checkpoints that no result needs, on their way to the disk after the results.

A trial that lost keeps its best checkpoint for ``cohort export --trial``. On an 8B model those of a sweep are twenty
gigabytes: nothing waits for them but the end of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cohort.checkpoints.state_memory import StateMemory
from cohort.checkpoints.state_writer import StateWriter
from cohort.checkpoints.stored_state import StoredState
from cohort.core.errors import RankLostError, StorageFullError

__all__ = ["SpareFiles"]


class SpareFiles:
    """Files that were begun, and the memory that each holds until it is whole.

    Attributes:
        num_files, num_bytes: Of all of them.
        lost: Trials whose checkpoint is in no file and will not be, in their order.
        error: What ended the writing; None where nothing did.
    """

    def __init__(self, paths: Mapping[StoredState, Path], *, memory: StateMemory, writer: StateWriter) -> None:
        """Take what ``writer`` was given, and ``memory`` holds."""
        self._left = dict(paths)
        self._memory, self._writer = memory, writer
        self._bytes = {name: memory.file_bytes(name) for name in paths}
        self.num_files, self.num_bytes = len(paths), sum(self._bytes.values())
        self.lost: list[int] = []
        self.error: StorageFullError | RankLostError | OSError | None = None

    @property
    def num_left(self) -> int:
        return len(self._left)

    @property
    def bytes_left(self) -> int:
        return sum(self._bytes[name] for name in self._left)

    def take_written(self) -> bool:
        """Free the memory of files that are whole by now; return whether nothing is left."""
        for name, path in list(self._left.items()):
            if self._writer.is_written(path):
                self._take(name)
        if self.error is not None:
            self.give_up()
        return not self._left

    def give_up(self) -> None:
        """Stop writing: wait for files that have begun, and leave out the others."""
        for name, path in list(self._left.items()):
            if self._writer.withdraw(path):
                self._forget(name)
                self.lost.append(name.trial_id)
        for name in list(self._left):
            self._take(name)
        self.lost.sort()

    def _take(self, name: StoredState) -> None:
        try:
            self._writer.finish(self._left[name])
        except (StorageFullError, RankLostError, OSError) as error:
            # the results are written: a disk that is full or fails takes nothing of them, nor of other tasks; nor does
            # a rank that had a part
            self.error = self.error or error
            self.lost.append(name.trial_id)
        self._forget(name)

    def _forget(self, name: StoredState) -> None:
        del self._left[name]
        self._memory.forget(name)
