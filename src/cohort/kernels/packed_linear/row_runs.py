"""Products in which a row's bits are its own, for any number of rows, given the heights at which a BLAS keeps them.

Shapes:  T rows · I inner width · W output width
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.packed_linear.term_heights import MOST_ROWS

__all__ = ["add_row_product", "even_heights", "row_product"]


def row_product(x_TI: Tensor, w_IW: Tensor, *, least: int) -> Tensor:
    """Return ``x w`` [T, W] from products of ``least`` to :data:`MOST_ROWS` rows each."""
    num_rows = x_TI.shape[0]
    if least <= num_rows <= MOST_ROWS:
        return torch.mm(x_TI, w_IW)
    if num_rows < least:
        return torch.mm(F.pad(x_TI, (0, 0, 0, least - num_rows)), w_IW)[:num_rows]
    y_TW = x_TI.new_empty(num_rows, w_IW.shape[1])
    heights = even_heights(num_rows)
    for x_RI, y_RW in zip(x_TI.split_with_sizes(heights), y_TW.split_with_sizes(heights), strict=True):
        torch.mm(x_RI, w_IW, out=y_RW)
    return y_TW


def add_row_product(y_TW: Tensor, x_TI: Tensor, w_IW: Tensor, *, alpha: float, least: int) -> None:
    """Add ``alpha x w`` to ``y`` in place, in the same runs."""
    num_rows = x_TI.shape[0]
    if least <= num_rows <= MOST_ROWS:
        y_TW.addmm_(x_TI, w_IW, alpha=alpha)
    elif num_rows < least:
        filled = (0, 0, 0, least - num_rows)
        y_TW.copy_(F.pad(y_TW, filled).addmm_(F.pad(x_TI, filled), w_IW, alpha=alpha)[:num_rows])
    else:
        heights = even_heights(num_rows)
        for y_RW, x_RI in zip(y_TW.split_with_sizes(heights), x_TI.split_with_sizes(heights), strict=True):
            y_RW.addmm_(x_RI, w_IW, alpha=alpha)


@functools.cache
def even_heights(num_rows: int) -> list[int]:
    """Cut rows into as few runs as may be, all about as tall: none is below half of :data:`MOST_ROWS`."""
    num_runs = -(-num_rows // MOST_ROWS)
    base, taller = divmod(num_rows, num_runs)
    return [base + (index < taller) for index in range(num_runs)]
