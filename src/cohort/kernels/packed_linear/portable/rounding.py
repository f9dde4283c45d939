"""Rounding a gradient's rows to e4m3 in two passes that read them anyway: one makes the sizes, the next the codes.

A kernel that writes parts of a row cannot round them, because one scale needs all of the row. It raises the row's size
instead, and the kernel that reads the row next, to shrink it, has the scale.

Shapes:  T rows of the stream · N width of the gradient
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.fp8_product import Fp8Rows, empty_rows
from cohort.kernels.fp8_product.triton import inverse_of, put_codes, row_scales

__all__ = ["Rounding", "begin_rounding", "put_scales", "round_columns", "round_tile"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounding:
    """Where two launches round the rows of a gradient.

    Attributes:
        factors_N: float32; multiplied into the columns before they are rounded.
        sizes_T: int32, the bits of each row's largest size so far; zeros before the first launch.
        rows: Codes and scales, written by the second launch.
    """

    factors_N: Tensor
    sizes_T: Tensor
    rows: Fp8Rows

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        return self.sizes_T, self.factors_N, self.rows.codes_TK, self.rows.scales_T, self.rows.codes_TK.stride(0)


def begin_rounding(like_TN: Tensor, *, factors_N: Tensor) -> Rounding:
    """Return room to round the rows of a gradient such as ``like``."""
    sizes_T = torch.zeros(like_TN.shape[0], dtype=torch.int32, device=like_TN.device)
    return Rounding(factors_N=factors_N, sizes_T=sizes_T, rows=empty_rows(like_TN, width=like_TN.shape[1]))


@triton.jit
def put_scales(sizes, scales, rows, row_ok, writes):
    """Return the scales of rows; ``writes`` tells whether this program stores them."""
    found = row_scales(tl.load(sizes + rows, mask=row_ok, other=0).to(tl.float32, bitcast=True))
    if writes:
        tl.store(scales + rows, found, mask=row_ok)
    return found


@triton.jit
def round_tile(x_tile, factors, codes, stride, scales, inverses, rows, row_ok, cols, col_ok):
    """Write the codes of a tile of a gradient."""
    x = x_tile.to(tl.float32) * tl.load(factors + cols, mask=col_ok, other=0.0)[None, :]
    put_codes(codes, stride, x, scales, inverses, rows, cols, row_ok[:, None] & col_ok[None, :])


@triton.jit
def round_columns(
    x, sizes, factors, codes, scales, stride_xt, stride_codes, row_start, row_stop, k_begin, k_end, width, writes,
    BM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the codes of a tile of rows of no adapter, between two columns, BLOCK columns a step."""
    rows = row_start + tl.arange(0, BM)
    row_ok = rows < row_stop
    found = put_scales(sizes, scales, rows, row_ok, writes)
    inverses = inverse_of(found)
    for k in range(k_begin, k_end, BLOCK):
        cols = k + tl.arange(0, BLOCK)
        col_ok = cols < tl.minimum(k_end, width)
        places = x + rows.to(tl.int64)[:, None] * stride_xt + cols[None, :]
        x_tile = tl.load(places, mask=row_ok[:, None] & col_ok[None, :], other=0.0)
        round_tile(x_tile, factors, codes, stride_codes, found, inverses, rows, row_ok, cols, col_ok)
