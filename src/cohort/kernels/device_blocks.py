"""Bytes of a device's tensors on their way to the host: each thread with a stream and pinned memory of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["BUFFER_BYTES", "OfThread"]

BUFFER_BYTES = 16 << 20


class OfThread(threading.local):
    """What a thread uses for one copy after the other."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._buffers: dict[int, Tensor] = {}

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """Return this thread's stream: of high priority, as those of low priority may be recorded by a graph."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device, priority=-1)
        return self._streams[device]

    def buffer(self, number: int) -> Tensor:
        """Return pinned bytes [BUFFER_BYTES]: fresh memory for each state would cost more than the copy."""
        if number not in self._buffers:
            try:
                self._buffers[number] = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
            except RuntimeError:
                # no room for pinned memory: the copy takes longer, and nothing else changes
                self._buffers[number] = torch.empty(BUFFER_BYTES, dtype=torch.uint8)
        return self._buffers[number]

    def blocks(self, tensor: Tensor) -> Iterator[memoryview]:
        """Yield the bytes of a contiguous tensor, each until the next; a GPU fills one of two buffers meanwhile.

        The thread's stream has to wait for what computes the tensor: see
        :func:`~cohort.training.transfers.transfer_threads.ready_events`.
        """
        parts = tensor.reshape(-1).view(torch.uint8).split(BUFFER_BYTES)
        if not tensor.is_cuda:
            yield from (part.numpy().data for part in parts)
            return
        stream, arrived = self.stream(tensor.device), list[torch.cuda.Event]()

        def fill(index: int) -> None:
            with torch.cuda.stream(stream):
                self.buffer(index % 2)[: len(parts[index])].copy_(parts[index], non_blocking=True)
                arrived.append(stream.record_event())

        fill(0)
        for index, part in enumerate(parts):
            if index + 1 < len(parts):
                fill(index + 1)
            arrived[index].synchronize()
            yield self.buffer(index % 2)[: len(part)].numpy().data
