"""Threads that copy states from a GPU, and what they wait for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from cohort.training.transfers.single_threaded import use_one_thread

__all__ = ["ready_events", "state_threads"]

MOST_THREADS = 4


def state_threads(name: str) -> ThreadPoolExecutor:
    """Return threads for copies; half of the cores are left to those who train."""
    count = max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
    return ThreadPoolExecutor(max_workers=count, thread_name_prefix=name, initializer=use_one_thread)


def ready_events(tensors: Iterable[Tensor]) -> dict[torch.device, torch.cuda.Event]:
    """Return for each GPU an event after what computes ``tensors``, for a thread's own stream to wait for."""
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    return {device: torch.cuda.current_stream(device).record_event() for device in devices}
