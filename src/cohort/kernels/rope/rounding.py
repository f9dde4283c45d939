"""e4m3 codes of a row of the fused gradient of queries, keys and values, while all of it is in a program's registers.

A row's heads lie one after the other: H of queries, then G of keys, then G of values, E columns each. Queries and keys
come as the two halves of each head, which the rotation has made.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import triton
import triton.language as tl

from cohort.kernels.fp8_product.triton import codes_of, inverse_of, row_scales

__all__ = ["round_row"]


@triton.jit
def _factored(
    x,
    factors_ptr,
    HEADS: tl.constexpr,
    HEADS_UP: tl.constexpr,
    START: tl.constexpr,
    COLUMNS: tl.constexpr,
    COLUMNS_UP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Return columns from START of heads, times their factors; zeros past them."""
    heads = tl.arange(0, HEADS_UP)[:, None]
    columns = tl.arange(0, COLUMNS_UP)[None, :]
    mask = (heads < HEADS) & (columns < COLUMNS)
    factors = tl.load(factors_ptr + heads * WIDTH + START + columns, mask=mask, other=0.0)
    return tl.where(mask, x.to(tl.float32) * factors, 0.0)


@triton.jit
def _put_codes(
    x,
    scale,
    inverse,
    codes_ptr,
    HEADS: tl.constexpr,
    HEADS_UP: tl.constexpr,
    START: tl.constexpr,
    COLUMNS: tl.constexpr,
    COLUMNS_UP: tl.constexpr,
    WIDTH: tl.constexpr,
):
    heads = tl.arange(0, HEADS_UP)[:, None]
    columns = tl.arange(0, COLUMNS_UP)[None, :]
    codes = codes_of(x, scale, inverse)
    tl.store(codes_ptr + heads * WIDTH + START + columns, codes, mask=(heads < HEADS) & (columns < COLUMNS))


@triton.jit
def _largest(x):
    return tl.max(tl.max(tl.abs(x), axis=1), axis=0)


@triton.jit
def round_row(
    q_first,
    q_second,
    k_first,
    k_second,
    v,
    factors_ptr,
    codes_ptr,
    scale_ptr,
    Q_HEADS: tl.constexpr,
    Q_HEADS_UP: tl.constexpr,
    K_HEADS: tl.constexpr,
    K_HEADS_UP: tl.constexpr,
    HALF: tl.constexpr,
    HALF_UP: tl.constexpr,
):
    """Write codes and scale of one row of the fused gradient, which is all in registers."""
    width: tl.constexpr = 2 * HALF
    k_start: tl.constexpr = Q_HEADS * 2 * HALF
    v_start: tl.constexpr = (Q_HEADS + K_HEADS) * 2 * HALF
    q_first = _factored(q_first, factors_ptr, Q_HEADS, Q_HEADS_UP, 0, HALF, HALF_UP, width)
    q_second = _factored(q_second, factors_ptr, Q_HEADS, Q_HEADS_UP, HALF, HALF, HALF_UP, width)
    k_first = _factored(k_first, factors_ptr + k_start, K_HEADS, K_HEADS_UP, 0, HALF, HALF_UP, width)
    k_second = _factored(k_second, factors_ptr + k_start, K_HEADS, K_HEADS_UP, HALF, HALF, HALF_UP, width)
    v = _factored(v, factors_ptr + v_start, K_HEADS, K_HEADS_UP, 0, width, 2 * HALF_UP, width)
    largest = tl.maximum(_largest(q_first), _largest(q_second))
    largest = tl.maximum(largest, tl.maximum(_largest(k_first), _largest(k_second)))
    scale = row_scales(tl.maximum(largest, _largest(v)))
    tl.store(scale_ptr, scale)
    inverse = inverse_of(scale)
    _put_codes(q_first, scale, inverse, codes_ptr, Q_HEADS, Q_HEADS_UP, 0, HALF, HALF_UP, width)
    _put_codes(q_second, scale, inverse, codes_ptr, Q_HEADS, Q_HEADS_UP, HALF, HALF, HALF_UP, width)
    _put_codes(k_first, scale, inverse, codes_ptr + k_start, K_HEADS, K_HEADS_UP, 0, HALF, HALF_UP, width)
    _put_codes(k_second, scale, inverse, codes_ptr + k_start, K_HEADS, K_HEADS_UP, HALF, HALF, HALF_UP, width)
    _put_codes(v, scale, inverse, codes_ptr + v_start, K_HEADS, K_HEADS_UP, 0, width, 2 * HALF_UP, width)
