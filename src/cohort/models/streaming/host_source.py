"""Streamed layers in the memory of the host: a base model larger than the GPU trains on it.

Copies run on a stream of their own, from page-locked memory, while layers compute. A layer of L bytes is hidden as long
as the layers from one streamed layer to the next compute for L / 55 GB/s (PCIe 5), forward and backward each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.core.units import format_bytes
from cohort.models.streaming.layer_streaming import LayerStreaming
from cohort.models.streaming.weight_ring import Complete, CopyDone, Ready

__all__ = ["HostSource", "host_streaming"]

# torch rounds page-locked blocks up to a power of two: whole blocks of this size waste nothing
BLOCK_BYTES = 1 << 28


class HostSource:
    """Keeps layers in page-locked memory for a GPU, in plain memory for a CPU."""

    is_recordable = True

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None
        self._blocks: dict[int, tuple[Tensor, ...]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of host memory that the layers take."""
        return sum(block.nbytes for blocks in self._blocks.values() for block in blocks)

    def keep(self, place: int, content: Tensor, *, starts: Sequence[int]) -> None:
        del starts
        self._blocks[place] = tuple(self._copied(part) for part in content.split(BLOCK_BYTES))

    def in_place(self, place: int, begin: int, num_bytes: int) -> Tensor | None:
        """Return None: everything is on the host."""
        del place, begin, num_bytes
        return None

    def fetch(self, place: int, into: Tensor) -> Ready:
        parts = zip(self._blocks[place], into.split(BLOCK_BYTES), strict=True)
        if self._stream is None:
            for block, part in parts:
                part.copy_(block)
            return Complete()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for block, part in parts:
                part.copy_(block, non_blocking=True)
        # a decoder may be dropped while its last fetch is under way
        into.record_stream(self._stream)
        return CopyDone(self._stream)

    def _copied(self, part: Tensor) -> Tensor:
        try:
            block = torch.empty(part.shape, dtype=part.dtype, pin_memory=self._on_gpu)
        except RuntimeError as error:
            raise _no_memory(self.num_bytes, part.nbytes, reason=str(error)) from error
        return block.copy_(part)


def _no_memory(taken: int, wanted: int, *, reason: str) -> InputError:
    first = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
    return InputError(
        Problem(
            where=Place(key=("memory", "host_streamed_layers")),
            found=f"no page-locked host memory for {format_bytes(wanted)} more after {format_bytes(taken)} ({first})",
            allowed="a host that can lock the memory of all streamed layers",
            hint="Stream fewer layers, raise the container's memory and `ulimit -l`, or choose a smaller base model.",
        )
    )


def host_streaming(layers: Sequence[int], device: torch.device) -> LayerStreaming | None:
    """Return what a loader needs to keep ``layers`` in host memory; None where there are none."""
    return LayerStreaming(layers, source=HostSource(device), device=device) if layers else None
