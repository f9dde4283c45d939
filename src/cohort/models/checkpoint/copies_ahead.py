"""Copies of mapped tensors to a device by several threads, each with a stream and pinned memory of its own.

One thread that copies pageable memory moves 5 GB/s to a GPU, which takes ten times as much; the file's pages come from
the host's memory where another process or a digest has just read them. A thread asks for the interpreter's lock a few
times for each block, so a load next to a thread that computes in Python shortens its turns.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

__all__ = ["CopiesAhead", "OwnCopies"]

MOST_THREADS = 6
# of pinned memory: two blocks for each thread, one of which is filled while the device takes the other
BLOCK_BYTES = 16 << 20


class CopiesAhead:
    """Begins copies to one device, which threads carry out until the block ends."""

    def __init__(self) -> None:
        """Start no thread yet; half of the cores are left to others."""
        count = max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
        self._threads = ThreadPoolExecutor(max_workers=count, thread_name_prefix="cohort-weights")
        self._of_thread = threading.local()

    def __enter__(self) -> CopiesAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def begin(self, target: Tensor, source: Tensor) -> Future[None]:
        """Begin to copy ``source``, a host tensor, into ``target`` of the same dtype and shape, both contiguous.

        The copy is done, on the device too, once the future is.
        """
        assert target.nbytes == source.nbytes, "a part would be left out"
        # the memory of the target may have been something else's, which the device is still at
        ready = torch.cuda.current_stream(target.device).record_event() if target.is_cuda else None
        return self._threads.submit(self._copy, target, source, ready)

    def _copy(self, target: Tensor, source: Tensor, ready: torch.cuda.Event | None) -> None:
        from_bytes, to_bytes = _bytes_of(source).numpy(), _bytes_of(target)
        if ready is None:
            np.copyto(to_bytes.numpy(), from_bytes)
            return
        stream, blocks = self._stream_and_blocks(target.device)
        with torch.cuda.stream(stream):
            ready.wait()
            try:
                # each call of torch may ask for the interpreter's lock: few of them for a block
                for number, part in enumerate(to_bytes.split(BLOCK_BYTES)):
                    block, taken = blocks[number % len(blocks)]
                    # the device has taken the blocks of the tensor before
                    if number >= len(blocks):
                        taken.synchronize()
                    num_bytes, start = len(part), number * BLOCK_BYTES
                    # not by torch, each of whose threads would call all cores together for it
                    np.copyto(block.numpy()[:num_bytes], from_bytes[start : start + num_bytes])
                    part.copy_(block if num_bytes == BLOCK_BYTES else block[:num_bytes], non_blocking=True)
                    taken.record()
            finally:
                stream.synchronize()

    def _stream_and_blocks(
        self, device: torch.device
    ) -> tuple[torch.cuda.Stream, list[tuple[Tensor, torch.cuda.Event]]]:
        """Return this thread's stream and pinned blocks, each with what says that the device has taken it."""
        own = self._of_thread
        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream(device)
            own.blocks = [(_pinned_block(), torch.cuda.Event()) for _ in range(2)]
        return own.stream, own.blocks


class OwnCopies:
    """Copies of mapped tensors into memory of their own, by threads where there are some, else at once.

    Mapped ones could be changed or cut short by other processes, and bits may depend on the alignment that only an
    allocator promises.
    """

    def __init__(self, copies: CopiesAhead | None) -> None:
        self._copies = copies
        self._begun: list[Future[None]] = []

    def into(self, target: Tensor, source: Tensor) -> None:
        """Copy ``source`` into ``target``, which has it after :meth:`wait`."""
        is_alike = source.dtype == target.dtype and source.shape == target.shape and source.is_contiguous()
        if self._copies is None or not is_alike:
            target.copy_(source)
        else:
            self._begun.append(self._copies.begin(target, source))

    def of(self, source: Tensor, *, device: torch.device) -> Tensor:
        """Return a tensor on ``device`` that is like ``source`` after :meth:`wait`."""
        target = torch.empty(source.shape, dtype=source.dtype, device=device)
        self.into(target, source)
        return target

    def wait(self) -> None:
        """Wait until all of them are there, on the device too."""
        for copy in self._begun:
            copy.result()
        self._begun.clear()


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _pinned_block() -> Tensor:
    try:
        return torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        # no room for pinned memory: the copy takes longer, and nothing else changes
        return torch.empty(BLOCK_BYTES, dtype=torch.uint8)
