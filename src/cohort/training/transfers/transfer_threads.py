"""Threads that copy states from a GPU: each with a stream and pinned memory of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

__all__ = ["BUFFER_BYTES", "OfThread", "ready_events", "state_threads"]

MOST_THREADS = 4
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


def state_threads(name: str) -> ThreadPoolExecutor:
    """Return threads for copies; half of the cores are left to those who train."""
    count = max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)


def ready_events(tensors: Iterable[Tensor]) -> dict[torch.device, torch.cuda.Event]:
    """Return for each GPU an event after what computes ``tensors``, for a thread's own stream to wait for."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return {device: torch.cuda.current_stream(device).record_event() for device in devices}
