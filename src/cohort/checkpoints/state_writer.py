"""Writes state files in threads of its own, while trials train.

The states of a sweep on an 8B model are tens of gigabytes: copying them from the GPU, hashing and writing them takes a
minute that nothing else needs to wait for. All of it lets the interpreter go on. A checkpoint waits for what it names.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
from torch import Tensor

from cohort.core.durable_files import write_parts
from cohort.training.checkpoint import file_parts

__all__ = ["StateWriter"]

MOST_THREADS = 4


class StateWriter:
    """Writes files of states, each whole or not at all."""

    def __init__(self) -> None:
        """Start no thread before there is something to write."""
        self._threads: ThreadPoolExecutor | None = None
        self._running: dict[Path, Future[str]] = {}
        self._buffers = threading.local()

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
            # half of the cores are left to those who train
            count = max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
            self._threads = ThreadPoolExecutor(max_workers=count, thread_name_prefix="cohort-states")
        ready = {}
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            # what computes the tensors may still run; the thread's own stream waits for it
            ready[device] = torch.cuda.current_stream(device).record_event()
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

        write_parts(path, hashed(file_parts(self._on_host(tensors, ready), step=step)))
        return digest.hexdigest()

    def _on_host(
        self, tensors: dict[str, Tensor], ready: Mapping[torch.device, torch.cuda.Event]
    ) -> Mapping[str, Tensor]:
        if not ready:
            return tensors
        buffer = self._buffer(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
        copies, end = {}, 0
        for name, tensor in tensors.items():
            begin, end = end, end + tensor.numel() * tensor.element_size()
            copies[name] = buffer[begin:end].view(tensor.dtype).view(tensor.shape)
        for device, event in ready.items():
            stream = torch.cuda.Stream(device)
            stream.wait_event(event)
            with torch.cuda.stream(stream):
                for name, tensor in tensors.items():
                    if tensor.device == device:
                        copies[name].copy_(tensor, non_blocking=True)
            stream.synchronize()
        for name, tensor in tensors.items():
            if not tensor.is_cuda:
                copies[name].copy_(tensor)
        return copies

    def _buffer(self, num_bytes: int) -> Tensor:
        """Return host memory of this thread, used again for its next file: fresh memory costs more than the copy."""
        kept: Tensor | None = getattr(self._buffers, "kept", None)
        if kept is None or kept.numel() < num_bytes:
            self._buffers.kept = None
            try:
                kept = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
            except RuntimeError:
                # no room for pinned memory: the copy takes longer, and nothing else changes
                kept = torch.empty(num_bytes, dtype=torch.uint8)
            self._buffers.kept = kept
        return kept
