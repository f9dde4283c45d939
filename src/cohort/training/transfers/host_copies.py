"""Copies states from a GPU to host memory, while trials train.

A parked state of an 8B model is up to two gigabytes. Copying it into fresh host memory takes as long as touching that
memory does, and nothing else needs to wait for it. Large pages are freed in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from cohort.core.process.huge_pages import use_huge_pages
from cohort.kernels.device_blocks import BUFFER_BYTES, OfThread
from cohort.training.transfers.transfer_threads import ready_events, state_threads

__all__ = ["HostCopies"]


class HostCopies:
    """Copies on their way to the host."""

    def __init__(self) -> None:
        """Start no thread before there is something to copy."""
        self._threads: ThreadPoolExecutor | None = None
        self._own = OfThread()

    def start(self, tensors: Mapping[str, Tensor]) -> Future[dict[str, Tensor]]:
        """Begin to copy ``tensors``, which must not change before the copies are there; return those, by name."""
        if self._threads is None:
            self._threads = state_threads("cohort-host-copies")
        return self._threads.submit(self.copied, dict(tensors), ready_events(tensors.values()))

    def copied(
        self, tensors: Mapping[str, Tensor], ready: Mapping[torch.device, torch.cuda.Event]
    ) -> dict[str, Tensor]:
        """Copy ``tensors`` in the thread that calls this, behind the events of their devices."""
        for device, event in ready.items():
            self._own.stream(device).wait_event(event)
        return {name: self._copy(tensor) for name, tensor in tensors.items()}

    def _copy(self, tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        use_huge_pages(host.data_ptr(), host.nbytes)
        if not tensor.is_cuda:
            return host.copy_(tensor)
        stream = self._own.stream(tensor.device)
        parts, places = (whole.reshape(-1).view(torch.uint8).split(BUFFER_BYTES) for whole in (tensor, host))
        arrived: list[torch.cuda.Event] = []

        def empty(index: int) -> None:
            arrived[index].synchronize()
            places[index].copy_(self._own.buffer(index % 2)[: len(places[index])])

        for index, part in enumerate(parts):
            # one buffer is filled from the device while the other is emptied
            with torch.cuda.stream(stream):
                self._own.buffer(index % 2)[: len(part)].copy_(part, non_blocking=True)
                arrived.append(stream.record_event())
            if index:
                empty(index - 1)
        if parts:
            empty(len(parts) - 1)
        return host
