"""Writes quantised weights into the cache while the model is used already, from the memory that it computes with.

For an 8B model these are 8 GB: written within the load they took 9 s of it. A thread reads each linear's weights from
its products, so that no byte of a device is taken for it, and holds none of them for longer than it writes one group: a
model that is let go is not written to its end. What is not there at the next load is quantised and written then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait

import torch

from cohort.core.process.daemon_thread import begin_in_thread
from cohort.kernels.device_blocks import OfThread
from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.checkpoint.quantised_files import QuantisedFiles, WritingStoppedError
from cohort.models.checkpoint_layout import FusedTensor
from cohort.models.weight_formats.weight_format import Disassemble

__all__ = ["write_behind"]

# what a process waits for at its end; a model of that time's size is in the cache after any command
_LAST_SECONDS = 2.0
# behind that the thread ends with the block that it writes
_BLOCK_SECONDS = 5.0


def write_behind(
    files: QuantisedFiles,
    layout: Sequence[FusedTensor],
    products: Mapping[str, FrozenProduct],
    *,
    disassemble: Disassemble,
    device: torch.device,
) -> Future[None] | None:
    """Begin to write the groups that ``files`` lacked; return what is done at the end, None where all were there.

    The end of the interpreter waits two seconds for it, and then leaves out the rest.

    Args:
        layout: Of the linears that were read.
        products: By the name of their group.
        disassemble: That of the format.
    """
    pieces = {fused.name.removesuffix(".weight"): fused.pieces for fused in layout if fused.is_linear}
    waiting = [(group, weakref.ref(products[group])) for group in files.absent]
    if not waiting:
        # a process that was killed as it wrote the last one may have left it to another
        files.remove_leftovers()
        return None
    # ranks that load at once begin elsewhere, and leave out what another one has written
    random.Random(os.getpid()).shuffle(waiting)
    # by its number, as tensors have it
    there = torch.cuda.current_stream(device).device if device.type == "cuda" else device
    ready = torch.cuda.current_stream(there).record_event() if there.type == "cuda" else None
    stop = threading.Event()

    def write() -> None:
        own = OfThread()
        with contextlib.nullcontext() if ready is None else torch.cuda.stream(own.stream(there)):
            if ready is not None:
                ready.wait()
            files.remove_leftovers()
            for group, reference in waiting:
                if (product := reference()) is None:
                    return
                parts = disassemble(product, [piece.shape[0] for piece in pieces[group]])
                kept = {piece.key: part for piece, part in zip(pieces[group], parts, strict=True)}
                if not files.write(group, kept, blocks=own.blocks, stop=stop):
                    return
                # before the next one is looked for: the model may have been let go
                del product, parts, kept

    def written() -> None:
        with contextlib.suppress(WritingStoppedError):
            write()

    writing = begin_in_thread("cohort-quantised", written)

    def end() -> None:
        if wait([writing], timeout=_LAST_SECONDS).not_done:
            stop.set()
            wait([writing], timeout=_BLOCK_SECONDS)

    # a daemon's calls of a device must not go on while that is taken down
    atexit.register(end)
    writing.add_done_callback(lambda _: atexit.unregister(end))
    return writing
