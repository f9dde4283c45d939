"""Writes state files in threads of its own, while trials train.

The states of a sweep on an 8B model are tens of gigabytes: copying them from the GPU, hashing and writing them takes a
minute that nothing else needs to wait for. All of it lets the interpreter go on. A checkpoint waits for what it names,
and only that has a SHA-256 and has to be on the disk. The last checkpoint does not wait, since results follow at once.
Spare files survive the process and have a CRC-32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from cohort.core.durable_files import atomic_file, flush_to_disk
from cohort.core.file_digest import file_digest
from cohort.kernels.device_blocks import OfThread
from cohort.ranks.divided_states.divided_rows import whole_rows
from cohort.training.checkpoint import write_state
from cohort.training.transfers.transfer_threads import ready_events, state_threads

__all__ = ["StateWriter"]


class StateWriter:
    """Writes files of states, each whole or not at all."""

    def __init__(self) -> None:
        """Start no thread before there is something to write."""
        self._threads: ThreadPoolExecutor | None = None
        # the SHA-256 of each, None for what is written behind
        self._running: dict[Path, Future[str | None]] = {}
        self._behind: set[Path] = set()
        self._own = OfThread()

    def is_writing(self, path: Path) -> bool:
        """Whether ``path`` was started and its end not yet waited for."""
        return path in self._running

    def is_written(self, path: Path) -> bool:
        """Whether nothing is left to wait for; :meth:`finish` says how it ended."""
        return self._running[path].done()

    def start(
        self,
        path: Path,
        tensors: Mapping[str, Tensor],
        *,
        step: int,
        is_behind: bool = False,
        is_flushed: bool = True,
    ) -> None:
        """Begin to write the state ``tensors`` after ``step``.

        Args:
            path: In a folder that is made where it is missing.
            tensors: By name, on the host, a GPU or in parts on ranks; they must not change before :meth:`finish`.
            is_behind: Neither hash it nor wait for the disk; :meth:`secure` does both if a checkpoint comes to name it.
            is_flushed: False hashes it and does not wait for the disk.
        """
        ready = ready_events(tensors.values())
        self._behind = self._behind | {path} if is_behind else self._behind - {path}
        if is_behind:
            self._running[path] = self._pool().submit(self._write_behind, path, dict(tensors), step, ready)
        else:
            self._running[path] = self._pool().submit(self._write, path, dict(tensors), step, ready, is_flushed)

    def is_behind(self, path: Path) -> bool:
        """Whether ``path`` is written for no checkpoint."""
        return path in self._behind

    def has_failed(self, path: Path) -> bool:
        """Whether ``path`` was started and is in no file, as where the disk was full."""
        running = self._running.get(path)
        return running is not None and running.done() and running.exception() is not None

    def withdraw(self, path: Path) -> bool:
        """Take back what was started, if it has not begun; return whether it is taken back."""
        is_withdrawn = self._running[path].cancel()
        if is_withdrawn:
            del self._running[path]
        return is_withdrawn

    def finish(self, path: Path) -> None:
        """Wait until a file that was started is whole.

        Raises:
            StorageFullError: the disk is full; there is no such file then.
        """
        self._running.pop(path).result()

    def start_securing(self, path: Path, *, is_flushed: bool = True) -> None:
        """Begin to bring a file to the disk with its SHA-256, one that is written behind or is there.

        Args:
            is_flushed: As of :meth:`start`.
        """
        written = self._running.get(path)
        if written is None or path in self._behind:
            self._behind.discard(path)
            self._running[path] = self._pool().submit(_secured, path, written, is_flushed)

    def secure(self, paths: Collection[Path]) -> dict[Path, str]:
        """Wait until files are as they were started, and others that are there on the disk; return each SHA-256.

        Raises:
            StorageFullError: the disk is full; the files that did not fit are not there.
        """
        for path in paths:
            self.start_securing(path)
        found = {path: str(self._running[path].result()) for path in paths}
        # only now: Ctrl-C while one waits loses track of none
        for path in paths:
            del self._running[path]
        return found

    def settle(self, *, but: Collection[Path] = ()) -> None:
        """Wait for all files ``but`` those, whatever becomes of them, and forget that they were started."""
        others = {path: running for path, running in self._running.items() if path not in but}
        wait(others.values())
        for path in others:
            # they may be removed now: one that comes by its name again has to be written again
            del self._running[path]

    def finish_all(self) -> bool:
        """Wait for all that was started, whatever becomes of it; return whether there was anything to wait for."""
        left = [running for running in self._running.values() if not running.done()]
        wait(left)
        return bool(left)

    def close(self) -> None:
        """Stop writing: wait for files that have begun, and leave out the others."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = state_threads("cohort-states")
        return self._threads

    def _write(
        self,
        path: Path,
        tensors: dict[str, Tensor],
        step: int,
        ready: Mapping[torch.device, torch.cuda.Event],
        is_flushed: bool,  # noqa: FBT001 - threads pass it by place
    ) -> str:
        with atomic_file(path, is_flushed=is_flushed) as partial:
            self._write_parts(partial, tensors, step, ready)
            # read back from the page cache: a tensor is copied from its GPU once
            return file_digest(partial).hex()

    def _write_behind(
        self, path: Path, tensors: dict[str, Tensor], step: int, ready: Mapping[torch.device, torch.cuda.Event]
    ) -> None:
        # neither hashed nor flushed: the page cache takes in a second what the disk takes in ten
        with atomic_file(path, is_flushed=False) as partial:
            self._write_parts(partial, tensors, step, ready)

    def _write_parts(
        self, path: Path, tensors: dict[str, Tensor], step: int, ready: Mapping[torch.device, torch.cuda.Event]
    ) -> None:
        for device, event in ready.items():
            self._own.stream(device).wait_event(event)
        with path.open("wb") as stream:
            write_state(stream, tensors, step=step, read=self._read)

    def _read(self, tensor: Tensor) -> Iterator[memoryview]:
        # parts on ranks are put together here and not before: one tensor at a time for each thread
        yield from self._own.blocks(whole_rows(tensor))


def _secured(path: Path, written: Future[str | None] | None, is_flushed: bool) -> str:  # noqa: FBT001 - as above
    """Wait until a file is whole, and on the disk where it is to be flushed; return its SHA-256."""
    if written is not None:
        # begun before this, so it never waits for a thread that this one takes
        written.result()
    digest = file_digest(path).hex()
    if is_flushed:
        flush_to_disk(path)
        flush_to_disk(path.parent)
    return digest
