"""Where torch's own SiLU on a CPU gives a row the same bits anywhere: where no row ends within a vector.

torch computes what fills no vector entry by entry, and its SiLU rounds otherwise there. Rows of a multiple of 32
entries fill vectors of any width in use (twice 16 floats, which a loop takes at once), so only the shares of several
threads could end within one. They begin at whole rows here.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["row_pieces"]

# Entries that one turn of torch's loop takes, with AVX-512; with AVX2 half of them.
TURN = 32
# torch's at::internal::GRAIN_SIZE: an operation on fewer entries stays in one thread.
GRAIN = 1 << 15


def row_pieces(x_TW: Tensor) -> list[int] | None:
    """Return the heights of the pieces of rows to compute one by one, so that a row's bits are its own.

    None where torch's SiLU gives no such promise: another device or dtype, or rows that end within a vector. That
    follows from the width alone, never from how many rows there are.
    """
    num_rows, width = x_TW.shape
    if x_TW.device.type != "cpu" or x_TW.dtype != torch.float32 or width % TURN or not 0 < width < GRAIN:
        return None
    return _heights(num_rows, width, torch.get_num_threads())


@functools.cache
def _heights(num_rows: int, width: int, num_threads: int) -> list[int]:
    if num_threads == 1 or num_rows * width < GRAIN:
        return [num_rows]
    even = num_rows - num_rows % num_threads
    # with fewer entries torch takes fewer threads, whose shares could end anywhere
    shared = [even] if even * width > (num_threads - 1) * GRAIN else []
    most = (GRAIN - 1) // width
    whole, rest = divmod(num_rows - sum(shared), most)
    return [*shared, *[most] * whole, *([rest] if rest else [])]
