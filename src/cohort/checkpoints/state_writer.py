"""Writes state files in threads of its own, while trials train.

The states of a sweep on an 8B model are tens of gigabytes: copying them from the GPU, hashing and writing them takes a
minute that nothing else needs to wait for. All of it lets the interpreter go on. A checkpoint waits for what it names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from cohort.checkpoints.transfer_threads import OfThread, ready_events, state_threads
from cohort.core.durable_files import write_parts
from cohort.training.checkpoint import file_parts

__all__ = ["StateWriter"]


class StateWriter:
    """Writes files of states, each whole or not at all."""

    def __init__(self) -> None:
        """Start no thread before there is something to write."""
        self._threads: ThreadPoolExecutor | None = None
        self._running: dict[Path, Future[str]] = {}
        self._own = OfThread()

    def is_writing(self, path: Path) -> bool:
        """Whether ``path`` was started and its end not yet waited for."""
        return path in self._running

    def start(self, path: Path, tensors: Mapping[str, Tensor], *, step: int) -> None:
        """Begin to write the state ``tensors`` after ``step``.

        Args:
            path: In a folder that is made where it is missing.
            tensors: By name, on the host or a GPU; they must not change before :meth:`finish`.
        """
        if self._threads is None:
            self._threads = state_threads("cohort-states")
        ready = ready_events(tensors.values())
        self._running[path] = self._threads.submit(self._write, path, dict(tensors), step, ready)

    def finish(self, path: Path) -> str:
        """Wait for a file that was started; return its SHA-256.

        Raises:
            StorageFullError: the disk is full; there is no such file then.
        """
        return self._running.pop(path).result()

    def settle(self) -> None:
        """Wait for all files, whatever becomes of them."""
        wait(self._running.values())

    def _write(
        self, path: Path, tensors: dict[str, Tensor], step: int, ready: Mapping[torch.device, torch.cuda.Event]
    ) -> str:
        digest = hashlib.sha256()

        def hashed(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
            for part in parts:
                digest.update(part)
                yield part

        write_parts(path, hashed(file_parts(tensors, step=step, read=self._reader(ready))))
        return digest.hexdigest()

    def _reader(
        self, ready: Mapping[torch.device, torch.cuda.Event]
    ) -> Callable[[Tensor], Iterator[memoryview]] | None:
        """Return what reads tensors of GPUs through a small buffer; None where all are on the host."""
        if not ready:
            return None
        for device, event in ready.items():
            self._own.stream(device).wait_event(event)

        def read(tensor: Tensor) -> Iterator[memoryview]:
            buffer = self._own.buffer(0)
            for part in tensor.reshape(-1).view(torch.uint8).split(len(buffer)):
                copy = buffer[: len(part)]
                if part.is_cuda:
                    stream = self._own.stream(part.device)
                    with torch.cuda.stream(stream):
                        copy.copy_(part, non_blocking=True)
                    stream.synchronize()
                else:
                    copy.copy_(part)
                yield copy.numpy().data

        return read
