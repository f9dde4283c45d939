"""What an augmented product reads besides X and W: B copied behind W, and S spread over the columns behind X.

Shapes:  T rows · N output width · C rank rows of the bank in use, a multiple of 16 · r true rank, BR its padded class
         F blocks of output columns, each with its own flags
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["NO_SPREAD", "Spread", "copy_factor", "spread_rows"]

# Output columns that a program copies, for 16 rank rows: 32 bytes a row of W, a whole sector.
COPY_BLOCK = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """Where a launch that makes S also spreads it.

    Attributes:
        spare_TC: The columns behind X: s S in the columns of the slot's rank rows, zeros elsewhere.
        flags_FC: float32: NaN where a block of B's row is not finite, else 0.
    """

    spare_TC: Tensor
    flags_FC: Tensor

    def arguments(self) -> tuple[Tensor, Tensor, int]:
        return self.spare_TC, self.flags_FC, self.spare_TC.stride(0)

    def constants(self) -> dict[str, int]:
        blocks = self.flags_FC.shape[0]
        return {"SPREAD": self.spare_TC.shape[1], "FLAGS": blocks, "FLAGS_UP": triton.next_power_of_2(blocks)}


NO_SPREAD = {"SPREAD": 0, "FLAGS": 0, "FLAGS_UP": 1}


@triton.jit
def spread_rows(
    spare, flags, stride_spare, rows, row_ok, s_tile, rank_row, rank, scale,
    ROWS: tl.constexpr, BR: tl.constexpr, SPREAD: tl.constexpr, FLAGS: tl.constexpr, FLAGS_UP: tl.constexpr,
):  # fmt: skip
    """Write ``scale * s_tile`` into the columns of the slot's rank rows and zeros into all others of these rows.

    Where a rank row of B is not finite the column is NaN, in the slot's own rows: its copy behind W has zeros instead.
    """
    # whole blocks of 16 columns: augmented_columns asks for slots that begin at multiples of 16 rank rows
    rank_row = tl.multiple_of(rank_row, 16)
    kept = (rank + 15) // 16 * 16
    places = spare + rows.to(tl.int64)[:, None] * stride_spare
    zeros = tl.zeros((ROWS, 16), dtype=spare.dtype.element_ty)
    for first in range(0, SPREAD, 16):
        if (first < rank_row) | (first >= rank_row + kept):
            tl.store(places + (first + tl.arange(0, 16))[None, :], zeros, mask=row_ok[:, None])
    ranks = tl.arange(0, BR)
    blocks = tl.arange(0, FLAGS_UP)
    flag_ok = (blocks < FLAGS)[:, None] & (ranks < rank)[None, :]
    flag_tile = tl.load(flags + blocks[:, None] * SPREAD + (rank_row + ranks)[None, :], mask=flag_ok, other=0.0)
    spread = tl.where((ranks < rank)[None, :], s_tile * scale + tl.sum(flag_tile, axis=0)[None, :], 0.0)
    own = row_ok[:, None] & (ranks < kept)[None, :]
    tl.store(places + (rank_row + ranks)[None, :], spread.to(spare.dtype.element_ty), mask=own)


@triton.jit
def _copy_factor_kernel(b, spare, flags, width, columns, stride_b, stride_spare, BN: tl.constexpr):
    """Grid (blocks of output columns, rank rows / 16). ``spare = B^T`` where B is finite, else 0; flags where it is
    not.
    """
    block = tl.program_id(0)
    outputs = block * BN + tl.arange(0, BN)
    rank_rows = tl.program_id(1) * 16 + tl.arange(0, 16)
    ok = outputs < width
    tile = tl.load(b + rank_rows.to(tl.int64)[:, None] * stride_b + outputs[None, :], mask=ok[None, :], other=0.0)
    finite = tl.abs(tile.to(tl.float32)) < float("inf")
    tile = tl.where(finite, tile, 0.0)
    bad = tl.max(tl.where(finite, 0, 1), axis=1)
    tl.store(flags + block * columns + rank_rows, tl.where(bad > 0, float("nan"), 0.0))
    places = spare + outputs.to(tl.int64)[:, None] * stride_spare + rank_rows[None, :]
    tl.store(places, tl.trans(tile), mask=ok[:, None])


def copy_factor(b_RN: Tensor, spare_NC: Tensor, spare_TC: Tensor) -> Spread:
    """Copy the first rank rows of B behind W, as many as ``spare_TC`` has columns; return where S is to be spread.

    Args:
        b_RN: B^T of every slot.
        spare_NC: The columns behind W, at least as many.
        spare_TC: The columns behind X, a multiple of 16.
    """
    width, columns = b_RN.shape[1], spare_TC.shape[1]
    blocks = triton.cdiv(width, COPY_BLOCK)
    flags_FC = torch.empty(blocks, columns, dtype=torch.float32, device=b_RN.device)
    _copy_factor_kernel[(blocks, columns // 16)](
        b_RN, spare_NC, flags_FC, width, columns, b_RN.stride(0), spare_NC.stride(0), BN=COPY_BLOCK, num_warps=4
    )
    return Spread(spare_TC=spare_TC, flags_FC=flags_FC)
