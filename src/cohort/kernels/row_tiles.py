"""How row-wise kernels cut a matrix into programs: one rule for every width, tuned on one GPU and sound on any.

A row always lies within one program, so its reduction order never depends on how many other rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RowTile", "row_tile"]

# 4096 bf16 elements by 4 warps: every thread has four 16-byte loads of each operand in flight, and 16 programs fit on a
# multiprocessor. The README of rms_norm shows how flat the optimum is.
ELEMENTS_PER_PROGRAM = 4096
ELEMENTS_PER_WARP = 1024
MOST_WARPS = 16


@dataclass(frozen=True, kw_only=True)
class RowTile:
    """One program's share.

    Attributes:
        rows: Rows of the matrix.
        columns: The row's width, rounded up to a power of two.
        num_warps: Warps that work on it.
    """

    rows: int
    columns: int
    num_warps: int


def row_tile(width: int, *, elements_per_program: int = ELEMENTS_PER_PROGRAM) -> RowTile:
    """Return the tile for rows of ``width`` elements: several short rows, or one long one with more warps."""
    columns = 1 << max(width - 1, 0).bit_length()
    rows = max(1, elements_per_program // columns)
    num_warps = min(MOST_WARPS, max(1, rows * columns // ELEMENTS_PER_WARP))
    return RowTile(rows=rows, columns=columns, num_warps=num_warps)
