"""The products of all experts with their own rows, in one launch whose size follows from the stream's rows alone.

torch has such a product for bfloat16 on Hopper and later; elsewhere it reads the ends of the groups on the host, so no
CUDA graph can record it. And what it tiles by follows from all rows of a pass: a row's sums may be added in another
order with other neighbours. The kernel here adds over K in steps of ``DEPTH`` columns from the first to the last. A row
of a matrix instruction reads its own row of X alone, so neither its place nor who shares its expert decides a bit.

Shapes:  S sorted pairs · E experts · K inner width · N output width
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import grouped_mm

from cohort.kernels.backend import on_device_of
from cohort.kernels.grouped_experts.groups import PRODUCT_ROWS, ExpertRows

__all__ = ["product"]

DEPTH, WIDTH = 64, 128
# torch wants rows that begin at a multiple of this many bytes
_ALIGNED_BYTES = 16


@triton.jit(do_not_specialize=["num_experts"])
def _expert_product_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    tiles_ptr,
    ends_ptr,
    N,
    K,
    num_experts,
    stride_we,
    stride_wn,
    stride_wk,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Grid (tiles, blocks of columns): ``x w^T`` of the tile's rows, w the weight of its expert."""
    expert = tl.load(tiles_ptr + 2 * tl.program_id(0))
    if expert < num_experts:
        first = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
        rows = first + tl.arange(0, ROWS)
        is_row = (rows < tl.load(ends_ptr + expert))[:, None]
        columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = (columns < N)[None, :]
        inner = tl.arange(0, DEPTH)
        x_tile = x_ptr + rows.to(tl.int64)[:, None] * K + inner[None, :]
        w_tile = w_ptr + expert.to(tl.int64) * stride_we + columns.to(tl.int64)[None, :] * stride_wn
        w_tile += inner.to(tl.int64)[:, None] * stride_wk
        total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
        for start in range(0, K, DEPTH):
            left = inner < K - start
            x = tl.load(x_tile, mask=is_row & left[None, :], other=0.0)
            w = tl.load(w_tile, mask=left[:, None] & inside, other=0.0)
            total = tl.dot(x, w, total, input_precision="ieee")
            x_tile += DEPTH
            w_tile += DEPTH * stride_wk
        places = y_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(places, total.to(y_ptr.dtype.element_ty), mask=is_row & inside)


def product(x_SK: Tensor, weight_ENK: Tensor, *, rows: ExpertRows, exact: bool) -> Tensor:
    """Return each row's product [S, N] with its expert; rows of no expert are anything.

    Args:
        weight_ENK: Of any strides: the transpose of one gives ``x w``.
        exact: Whether a row's bits must not depend on the other rows.
    """
    if not exact and _torch_takes(x_SK, weight_ENK):
        return grouped_mm(x_SK, weight_ENK.transpose(1, 2), offs=rows.ends_E)
    x_SK = x_SK.contiguous()
    (num_pairs, inner), num_columns = x_SK.shape, weight_ENK.shape[1]
    y_SN = x_SK.new_empty(num_pairs, num_columns)
    if num_pairs:
        tiles_N2 = rows.product_tiles_N2
        with on_device_of(x_SK):
            _expert_product_kernel[(len(tiles_N2), triton.cdiv(num_columns, WIDTH))](
                x_SK,
                weight_ENK,
                y_SN,
                tiles_N2,
                rows.ends_E,
                num_columns,
                inner,
                len(rows.ends_E),
                *weight_ENK.stride(),
                ROWS=PRODUCT_ROWS,
                BLOCK=WIDTH,
                DEPTH=DEPTH,
                num_warps=8 if x_SK.dtype.itemsize == 4 else 4,
            )
    return y_SN


def _torch_takes(x_SK: Tensor, weight_ENK: Tensor) -> bool:
    """Return whether torch multiplies these operands by a kernel that nothing waits for."""
    if not x_SK.is_cuda or x_SK.dtype != torch.bfloat16 or not _has_grouped_kernel(x_SK.device.index or 0):
        return False
    widths = (x_SK.shape[1], weight_ENK.shape[1])
    return all(width * x_SK.element_size() % _ALIGNED_BYTES == 0 for width in widths)


@functools.cache
def _has_grouped_kernel(index: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(index)[0] in (9, 10)
