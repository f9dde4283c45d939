"""Rounding of rows to e4m3 in one pass, and the transposition of codes.

Shapes:  T rows · K width · N output width of the weight
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of
from cohort.kernels.fp8_product.reference import CODES

__all__ = [
    "codes_of",
    "divided",
    "inverse_of",
    "put_codes",
    "put_sizes",
    "quantise_rows",
    "row_codes",
    "row_scales",
    "transposed",
]

LARGEST = tl.constexpr(448.0)
LEAST = tl.constexpr(1e-12)
# as in rms_norm: every thread has several 16-byte loads in flight
ELEMENTS_PER_PROGRAM = 4096
ELEMENTS_PER_WARP = 1024
# A row that is wider does not fit into the registers of a program that shares its multiprocessor with others: it is
# read in pieces, twice. The second time it comes from the caches, which hold the rows of all programs that run at once
# (four a multiprocessor at 16 warps: 30 MB at width 28,672, of an H100's 50).
WIDEST_WHOLE_ROW = 4096
PIECE_WARPS = 16
# bytes: a tile is read and written in whole cache lines
TRANSPOSED_TILE = 128


@triton.jit
def row_codes(x):
    """Return codes and scales of a tile of whole rows in float32, for whichever kernel has them in registers."""
    # a NaN may get lost here; its own code keeps it, and with it the row
    scales = row_scales(tl.max(tl.abs(x), axis=1))
    inverses = inverse_of(scales)
    return codes_of(x, scales[:, None], inverses[:, None]), scales


@triton.jit
def inverse_of(scales):
    """Return 1 / scale, rounded to nearest."""
    # ones in the scales' own shape, of which the one scale of a wide row has none
    return tl.div_rn(tl.where(scales > 0.0, 1.0, 1.0), scales)


@triton.jit
def divided(x, scales, inverses):
    """Return ``x / scale``: a division's bits in three operations an entry, where the compiler's own takes ten.

    One step of Newton's method from the product with the inverse rounds a quotient to nearest (Markstein, Computation
    of elementary functions on the IBM RISC System/6000, 1990). Minus zero stays minus zero.
    """
    near = x * inverses
    over = tl.fma(near, tl.zeros_like(x) + scales, -x)
    # not -over: the compiler's minus is a subtraction from plus zero, and would make plus zero of minus zero
    return tl.fma(over, tl.zeros_like(x) - inverses, near)


@triton.jit
def codes_of(x, scales, inverses):
    """Return ``x / scale`` in e4m3. In a row whose scale is infinite all codes are NaN."""
    return divided(x, scales, inverses).to(tl.float8e4nv)


@triton.jit
def row_scales(largest):
    """Return the scales of rows by the sizes of their largest entries."""
    # LEAST and LARGEST; why they are written out: see kernels/dropout/triton.py
    return tl.div_rn(tl.where(largest < 1e-12, 1e-12, largest), 448.0)


@triton.jit
def put_sizes(sizes_ptr, x, rows, row_ok):
    """Raise the sizes of rows, float32 as int32, to those of a tile of their entries: a largest has no order."""
    largest = tl.max(tl.abs(x), axis=1)
    # floats that are not negative are ordered as their bits are
    tl.atomic_max(sizes_ptr + rows, largest.to(tl.int32, bitcast=True), mask=row_ok, sem="relaxed")


@triton.jit
def put_codes(codes_ptr, stride, x, scales, inverses, rows, columns, ok):
    """Write the codes of a tile of entries of rows whose scales, and their inverses, are known."""
    codes = codes_of(x, scales[:, None], inverses[:, None])
    tl.store(codes_ptr + rows.to(tl.int64)[:, None] * stride + columns[None, :], codes, mask=ok)


# one compilation for every number of rows: a row has the same bits in any stream
@triton.jit(do_not_specialize=["num_rows"])
def _quantise_kernel(
    x_ptr,
    factors_ptr,
    codes_ptr,
    scales_ptr,
    num_rows,
    x_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * x_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_FACTORS:
        x *= tl.load(factors_ptr + columns, mask=columns < WIDTH, other=0.0)[None, :]
    codes, scales = row_codes(x)
    tl.store(codes_ptr + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :], codes, mask=mask)
    tl.store(scales_ptr + rows, scales, mask=rows < num_rows)


@triton.jit
def _piece(x_ptr, factors_ptr, columns, WIDTH: tl.constexpr, EVEN: tl.constexpr, HAS_FACTORS: tl.constexpr):
    if EVEN:
        x = tl.load(x_ptr + columns).to(tl.float32)
        if HAS_FACTORS:
            x *= tl.load(factors_ptr + columns)
    else:
        x = tl.load(x_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
        if HAS_FACTORS:
            x *= tl.load(factors_ptr + columns, mask=columns < WIDTH, other=0.0)
    return x


@triton.jit
def _quantise_wide_kernel(
    x_ptr,
    factors_ptr,
    codes_ptr,
    scales_ptr,
    x_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):
    """Grid (rows,). What :func:`_quantise_kernel` computes, to the bit: the largest of a row has no order."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    codes_ptr += row * WIDTH
    sizes = tl.zeros([COLUMNS], dtype=tl.float32)
    for start in tl.static_range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        sizes = tl.maximum(sizes, tl.abs(_piece(x_ptr, factors_ptr, columns, WIDTH, EVEN, HAS_FACTORS)))
    largest = tl.max(sizes, axis=0)
    scale = tl.div_rn(tl.where(largest < LEAST, LEAST, largest), LARGEST)
    tl.store(scales_ptr + row, scale)
    inverse = inverse_of(scale)
    for start in tl.static_range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        x = _piece(x_ptr, factors_ptr, columns, WIDTH, EVEN, HAS_FACTORS)
        codes = codes_of(x, scale, inverse)
        if EVEN:
            tl.store(codes_ptr + columns, codes)
        else:
            tl.store(codes_ptr + columns, codes, mask=columns < WIDTH)


@triton.jit
def _transpose_kernel(codes_ptr, out_ptr, num_out, num_in, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = (rows < num_out)[:, None] & (columns < num_in)[None, :]
    tile = tl.load(codes_ptr + rows.to(tl.int64)[:, None] * num_in + columns[None, :], mask=mask, other=0)
    places = columns.to(tl.int64)[:, None] * num_out + rows[None, :]
    tl.store(out_ptr + places, tl.trans(tile), mask=tl.trans(mask.to(tl.int8)) != 0)


def quantise_rows(x_TK: Tensor, *, factors_K: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return codes and scales as the reference has them; memory is read once."""
    num_rows, width = x_TK.shape
    x_TK = x_TK if x_TK.stride(1) == 1 or width <= 1 else x_TK.contiguous()
    codes_TK = torch.empty(num_rows, width, dtype=CODES, device=x_TK.device)
    scales_T = torch.empty(num_rows, dtype=torch.float32, device=x_TK.device)
    if width == 0:
        return codes_TK, scales_T.fill_(1.0)
    if num_rows == 0:
        return codes_TK, scales_T
    operands = (x_TK, scales_T if factors_K is None else factors_K, codes_TK, scales_T)
    with on_device_of(x_TK):
        if width > WIDEST_WHOLE_ROW:
            columns = piece_columns(width)
            _quantise_wide_kernel[(num_rows,)](
                *operands,
                x_TK.stride(0),
                WIDTH=width,
                COLUMNS=columns,
                EVEN=width % columns == 0,
                HAS_FACTORS=factors_K is not None,
                num_warps=PIECE_WARPS,
            )
            return codes_TK, scales_T
        columns = 1 << (width - 1).bit_length()
        rows = max(1, ELEMENTS_PER_PROGRAM // columns)
        _quantise_kernel[(triton.cdiv(num_rows, rows),)](
            *operands,
            num_rows,
            x_TK.stride(0),
            WIDTH=width,
            ROWS=rows,
            COLUMNS=columns,
            HAS_FACTORS=factors_K is not None,
            num_warps=max(1, rows * columns // ELEMENTS_PER_WARP),
        )
    return codes_TK, scales_T


def piece_columns(width: int) -> int:
    """Return the columns of a piece of a wide row: the most of a program's threads that leave none idle."""
    return next((columns for columns in (8192, 4096, 2048) if width % columns == 0), 4096)


def transposed(codes_NK: Tensor) -> Tensor:
    """Return the codes as [K, N] with N in consecutive bytes, at about the speed of a copy."""
    num_out, num_in = codes_NK.shape
    out_KN = torch.empty(num_in, num_out, dtype=CODES, device=codes_NK.device)
    grid = (triton.cdiv(num_out, TRANSPOSED_TILE), triton.cdiv(num_in, TRANSPOSED_TILE))
    with on_device_of(codes_NK):
        _transpose_kernel[grid](
            codes_NK.view(torch.uint8), out_KN.view(torch.uint8), num_out, num_in, TILE=TRANSPOSED_TILE, num_warps=8
        )
    return out_KN
