"""LoRA terms row by row on the GPU: each program reads the rank rows of one row's adapter.

Shapes:  T rows of the stream · K input width · N output width of a part · R rank rows of the class · P parts · S splits

Source: Punica's batched gather matrix-vector product (Chen et al., MLSys 2024), split along K as S-LoRA and vLLM do. We
differ: one bank instead of pointer lists, siblings in one launch, and sums whose order does not depend on neighbours.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.core.errors import OperandError
from cohort.kernels.backend import on_device_of
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = ["add_row_terms"]

# entries of K that one program sums
SPLIT = 1024
# Entries of a factor that a program holds at a time, 32 a thread: 256 columns of 16 rank rows, 16 columns of 256.
TILE = 4096
_MOST_PARTS = 3


@triton.jit
def _of_part(part, first, second, third):
    return tl.where(part == 0, first, tl.where(part == 1, second, third))


# offsets are specialised: only loads that are known to begin at multiples of 16 bytes read 16 bytes at a time
@triton.jit(do_not_specialize=["num_rows"])
def _shrink_kernel(
    x_ptr,
    a_ptr,
    s_ptr,
    rows_ptr,
    num_rows,
    width,
    x_row,
    a_row,
    a_0,
    a_1,
    a_2,
    PARTS: tl.constexpr,
    RANKS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, split, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    rank = tl.load(rows_ptr + 4 * row + 1)
    if rank > 0:
        first = tl.load(rows_ptr + 4 * row).to(tl.int64)
        ranks, k = tl.arange(0, RANKS), tl.arange(0, BLOCK)
        a_ptr += _of_part(part, a_0, a_1, a_2) + first * a_row
        total = tl.zeros([RANKS], tl.float32)
        for start in range(split * SPAN, tl.minimum((split + 1) * SPAN, width), BLOCK):
            inside = start + k < width
            x = tl.load(x_ptr + row * x_row + start + k, mask=inside, other=0.0).to(tl.float32)
            places = ranks.to(tl.int64)[:, None] * a_row + (start + k)[None, :]
            a = tl.load(a_ptr + places, mask=(ranks < rank)[:, None] & inside[None, :], other=0.0)
            total += tl.sum(a.to(tl.float32) * x[None, :], 1)
        tl.store(s_ptr + ((split * num_rows + row) * PARTS + part) * RANKS + ranks, total)


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def _expand_kernel(
    s_ptr,
    b_ptr,
    y_ptr,
    rows_ptr,
    num_rows,
    num_splits,
    y_row,
    b_row,
    b_0,
    b_1,
    b_2,
    n_0,
    n_1,
    n_2,
    c_0,
    c_1,
    c_2,
    PARTS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rank = tl.load(rows_ptr + 4 * row + 1)
    blocks_0, blocks_1 = tl.cdiv(n_0, BLOCK), tl.cdiv(n_1, BLOCK)
    part = (block >= blocks_0).to(tl.int32) + (block >= blocks_0 + blocks_1).to(tl.int32)
    if rank > 0:
        first = tl.load(rows_ptr + 4 * row).to(tl.int64)
        scale = tl.load(rows_ptr + 4 * row + 2).to(tl.float32, bitcast=True)
        own = block - _of_part(part, 0, blocks_0, blocks_0 + blocks_1)
        ranks, n = tl.arange(0, RANKS), own * BLOCK + tl.arange(0, BLOCK)
        inside = n < _of_part(part, n_0, n_1, n_2)
        s = tl.zeros([RANKS], tl.float32)
        for split in range(num_splits):
            s += tl.load(s_ptr + ((split * num_rows + row) * PARTS + part) * RANKS + ranks)
        b_ptr += _of_part(part, b_0, b_1, b_2) + first * b_row
        places = ranks.to(tl.int64)[:, None] * b_row + n[None, :]
        b = tl.load(b_ptr + places, mask=(ranks < rank)[:, None] & inside[None, :], other=0.0)
        term = tl.sum(b.to(tl.float32) * (s * scale)[:, None], 0)
        y_places = y_ptr + row * y_row + _of_part(part, c_0, c_1, c_2) + n
        y = tl.load(y_places, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_places, (y + term).to(y_ptr.dtype.element_ty), mask=inside)


def add_row_terms(y_TN: Tensor, x_TK: Tensor, *, parts: Sequence[LoraPart], tables: RowTables) -> None:
    """Add each row's LoRA terms to ``y``: up to three siblings in one launch of each kernel.

    Raises:
        OperandError: the parts' factors are not views of one bank.
    """
    for start in range(0, len(parts), _MOST_PARTS):
        _add_terms(y_TN, x_TK, parts[start : start + _MOST_PARTS], tables)


def _add_terms(y_TN: Tensor, x_TK: Tensor, parts: Sequence[LoraPart], tables: RowTables) -> None:
    a, b = parts[0].a_RK, parts[0].b_RN
    storage = a.untyped_storage().data_ptr()
    for part in parts:
        for factor in (part.a_RK, part.b_RN):
            if factor.untyped_storage().data_ptr() != storage or factor.stride(0) != a.stride(0):
                raise OperandError("row tables need all factors of a linear in one bank: use LaunchTables instead")
    num_rows, width = x_TK.shape
    num_splits = triton.cdiv(width, SPLIT)
    s_STPR = x_TK.new_empty(num_splits, num_rows, len(parts), tables.rank_class, dtype=torch.float32)
    # offsets of further parts from the first one's factors; parts that are not there are never asked for
    padded = [*parts, *[parts[0]] * (_MOST_PARTS - len(parts))]
    a_offsets = [part.a_RK.storage_offset() - a.storage_offset() for part in padded]
    b_offsets = [part.b_RN.storage_offset() - b.storage_offset() for part in padded]
    widths = [part.b_RN.shape[1] for part in parts] + [0] * (_MOST_PARTS - len(parts))
    columns = [part.column_start for part in padded]
    block = max(16, min(256, TILE // tables.rank_class))
    num_blocks = sum(triton.cdiv(n, block) for n in widths)
    with on_device_of(x_TK):
        _shrink_kernel[(num_rows, num_splits, len(parts))](
            x_TK,
            a,
            s_STPR,
            tables.rows_T4,
            num_rows,
            width,
            x_TK.stride(0),
            a.stride(0),
            *a_offsets,
            PARTS=len(parts),
            RANKS=tables.rank_class,
            SPAN=SPLIT,
            BLOCK=block,
            num_warps=4,
        )
        _expand_kernel[(num_rows, num_blocks)](
            s_STPR,
            b,
            y_TN,
            tables.rows_T4,
            num_rows,
            num_splits,
            y_TN.stride(0),
            b.stride(0),
            *b_offsets,
            *widths,
            *columns,
            PARTS=len(parts),
            RANKS=tables.rank_class,
            BLOCK=block,
            num_warps=4,
        )
