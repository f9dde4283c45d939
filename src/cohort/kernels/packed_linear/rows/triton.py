"""LoRA terms row by row on the GPU: each program reads the rank rows of one row's adapter.

Shapes:  T rows of the stream · K input width · N output width of a part · R rank rows of the class · P parts · S splits

Source: Punica's batched gather matrix-vector product (Chen et al., MLSys 2024), split along K as S-LoRA and vLLM do. We
differ: one bank instead of pointer lists, siblings in one launch, and sums whose order does not depend on neighbours.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.core.errors import OperandError
from cohort.kernels.backend import on_device_of
from cohort.kernels.packed_linear.rows.tables import RowTables
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = ["MOST_PARTS", "RowTerms", "start_row_terms"]

# Entries of a factor that a program loads at once, 64 a thread: 512 columns of 16 rank rows, 32 columns of 256. What
# these kernels cost beyond the bytes is the time of loads that wait for each other, so each waits as seldom as can be.
TILE = 8192
MOST_COLUMNS = 512
# sums of a row that the second kernel adds up, all loaded at once
MOST_SPLITS = 32
MOST_PARTS = 3


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
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARES: tl.constexpr,
):
    row, split, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    first = tl.load(rows_ptr + 4 * row).to(tl.int64)
    rank = tl.load(rows_ptr + 4 * row + 1) // SHARES
    if rank > 0:
        ranks, k = tl.arange(0, RANKS), split * (STEPS * BLOCK) + tl.arange(0, BLOCK)
        a_ptr += _of_part(part, a_0, a_1, a_2) + first * a_row
        products = tl.zeros([RANKS, BLOCK], tl.float32)
        for step in tl.static_range(STEPS):
            columns = k + step * BLOCK
            inside = columns < width
            x = tl.load(x_ptr + row * x_row + columns, mask=inside, other=0.0).to(tl.float32)
            places = ranks.to(tl.int64)[:, None] * a_row + columns[None, :]
            a = tl.load(a_ptr + places, mask=(ranks < rank)[:, None] & inside[None, :], other=0.0)
            products += a.to(tl.float32) * x[None, :]
        place = ((split * num_rows + row) * PARTS + part) * RANKS
        tl.store(s_ptr + place + ranks, tl.sum(products, 1))


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
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tl.load(rows_ptr + 4 * row).to(tl.int64)
    rank = tl.load(rows_ptr + 4 * row + 1)
    scale = tl.load(rows_ptr + 4 * row + 2).to(tl.float32, bitcast=True)
    blocks_0, blocks_1 = tl.cdiv(n_0, BLOCK), tl.cdiv(n_1, BLOCK)
    part = (block >= blocks_0).to(tl.int32) + (block >= blocks_0 + blocks_1).to(tl.int32)
    own = block - _of_part(part, 0, blocks_0, blocks_0 + blocks_1)
    n = own * BLOCK + tl.arange(0, BLOCK)
    inside = n < _of_part(part, n_0, n_1, n_2)
    y_places = y_ptr + row * y_row + _of_part(part, c_0, c_1, c_2) + n
    if rank > 0:
        ranks, splits = tl.arange(0, RANKS), tl.arange(0, SPLITS)
        # everything is asked for before anything is used
        sums = ((splits * num_rows + row) * PARTS + part)[:, None] * RANKS + ranks[None, :]
        s = tl.load(s_ptr + sums, mask=(splits < num_splits)[:, None], other=0.0)
        b_ptr += _of_part(part, b_0, b_1, b_2) + first * b_row
        places = ranks.to(tl.int64)[:, None] * b_row + n[None, :]
        b = tl.load(b_ptr + places, mask=(ranks < rank)[:, None] & inside[None, :], other=0.0)
        if ADDS:
            y = tl.load(y_places, mask=inside, other=0.0).to(tl.float32)
            term = tl.sum(b.to(tl.float32) * (tl.sum(s, 0) * scale)[:, None], 0)
            tl.store(y_places, (y + term).to(y_ptr.dtype.element_ty), mask=inside)
        else:
            tl.store(y_places, tl.sum(b.to(tl.float32) * (tl.sum(s, 0) * scale)[:, None], 0), mask=inside)
    elif not ADDS:
        tl.store(y_places, tl.zeros([BLOCK], tl.float32), mask=inside)


def start_row_terms(x_TK: Tensor, *, parts: Sequence[LoraPart], tables: RowTables, shares: int = 1) -> list[RowTerms]:
    """Launch the first of two kernels for each row's LoRA terms: up to three siblings each.

    Where the tables have a stream for it, and a graph is recorded, it runs at the same time as what is launched next.

    Args:
        shares: Of each adapter's rank rows, A's first 1 / shares alone are multiplied: other ranks have the rest.

    Raises:
        OperandError: the parts' factors are not views of one bank.
    """
    return [
        RowTerms(x_TK, parts[start : start + MOST_PARTS], tables, shares=shares)
        for start in range(0, len(parts), MOST_PARTS)
    ]


class RowTerms:
    """The terms of some siblings, between both kernels."""

    def __init__(self, x_TK: Tensor, parts: Sequence[LoraPart], tables: RowTables, *, shares: int) -> None:
        a = parts[0].a_RK
        storage = a.untyped_storage().data_ptr()
        for part in parts:
            for factor in (part.a_RK, part.b_RN):
                if factor.untyped_storage().data_ptr() != storage or factor.stride(0) != a.stride(0):
                    raise OperandError("row tables need all factors of a linear in one bank: use LaunchTables instead")
        # parts that are not there are never asked for
        self._parts, self._padded = parts, [*parts, *[parts[0]] * (MOST_PARTS - len(parts))]
        self._tables = tables
        num_rows, width = x_TK.shape
        self._block = max(16, min(MOST_COLUMNS, TILE // tables.rank_class))
        steps = triton.cdiv(width, self._block * MOST_SPLITS)
        self._num_splits = triton.cdiv(width, self._block * steps)
        self._s_STPR = x_TK.new_empty(self._num_splits, num_rows, len(parts), tables.rank_class, dtype=torch.float32)
        self._side = tables.side if x_TK.is_cuda and torch.cuda.is_current_stream_capturing() else None
        # offsets of further parts from the first one's factors
        offsets = [part.a_RK.storage_offset() - a.storage_offset() for part in self._padded]
        with on_device_of(x_TK), _beside(self._side):
            _shrink_kernel[(num_rows, self._num_splits, len(parts))](
                x_TK,
                a,
                self._s_STPR,
                tables.rows_T4,
                num_rows,
                width,
                x_TK.stride(0),
                a.stride(0),
                *offsets,
                PARTS=len(parts),
                RANKS=tables.rank_class,
                STEPS=steps,
                BLOCK=self._block,
                SHARES=shares,
                num_warps=4,
            )

    def exchange(self, with_others: Callable[[Tensor], Tensor]) -> None:
        """Put what ``with_others`` makes of the sums [T, P, R] in their place; rows of no adapter hold anything."""
        self.join()
        self._s_STPR, self._num_splits = with_others(self._s_STPR.sum(dim=0)).contiguous()[None], 1

    def add_to(self, y_TN: Tensor) -> None:
        """Add the terms to the frozen product."""
        self.join()
        self._expand(y_TN, adds=True)

    def write_apart(self, term_TN: Tensor) -> None:
        """Write the terms into a float32 tensor, zeros in rows of no adapter, where the sums are computed.

        On a stream of the side they are there only once :meth:`join` was called.
        """
        with nullcontext() if self._side is None else torch.cuda.stream(self._side):
            self._expand(term_TN, adds=False)

    def join(self) -> None:
        """Let what is launched from now on see what the side has computed."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)

    def _expand(self, y_TN: Tensor, *, adds: bool) -> None:
        parts, b = self._parts, self._parts[0].b_RN
        offsets = [part.b_RN.storage_offset() - b.storage_offset() for part in self._padded]
        widths = [part.b_RN.shape[1] for part in parts] + [0] * (MOST_PARTS - len(parts))
        columns = [part.column_start for part in self._padded]
        num_rows, num_blocks = y_TN.shape[0], sum(triton.cdiv(n, self._block) for n in widths)
        with on_device_of(y_TN):
            _expand_kernel[(num_rows, num_blocks)](
                self._s_STPR,
                b,
                y_TN,
                self._tables.rows_T4,
                num_rows,
                self._num_splits,
                y_TN.stride(0),
                b.stride(0),
                *offsets,
                *widths,
                *columns,
                PARTS=len(parts),
                RANKS=self._tables.rank_class,
                SPLITS=triton.next_power_of_2(self._num_splits),
                BLOCK=self._block,
                ADDS=adds,
                num_warps=4,
            )


@contextmanager
def _beside(side: torch.cuda.Stream | None) -> Iterator[None]:
    if side is None:
        yield
        return
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
