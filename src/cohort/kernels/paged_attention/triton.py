"""Attention over pages on the GPU: keys in pieces of fixed size, one program each, the last of which joins them.

Shapes:  T rows of the stream · H query heads · G key-value heads · E head width · S pieces
         M rows of a tile (queries times the query heads that share a key head) · N keys at a time

Source: FlashDecoding (Dao et al. 2023), pieces of the keys in parallel; vLLM's PagedAttention (Kwon et al., SOSP 2023),
pages. We differ: decoding and chunks of prompts are one kernel, and pieces begin at fixed positions, so that a
sequence's bits do not depend on how long its neighbours are.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of
from cohort.kernels.packed_linear.portable.stages import arrives_last
from cohort.kernels.paged_attention.op import NewPages, PagedTiles

__all__ = ["PIECE_KEYS", "paged_attention_forward", "store_pages"]

# Keys of a piece. Decoding has few tiles: small pieces fill the device. Prompts have many: one piece holds all keys.
PIECE_KEYS = 256
KEYS = 64
LOG2_E = math.log2(math.e)


@triton.jit
def _joined(parts_ptr, lse_ptr, first, used, piece_rows, places, e, valid, inside, WIDTH: tl.constexpr):
    """Return the output of rows ``places`` of each piece, joined in the order of the pieces."""
    # past the first-level cache, which does not see what other multiprocessors wrote
    place = first.to(tl.int64) * piece_rows + places
    largest = tl.load(lse_ptr + place, mask=valid, other=float("-inf"), cache_modifier=".cg")
    o = tl.load(parts_ptr + (place * WIDTH)[:, None] + e[None, :], mask=inside, other=0.0, cache_modifier=".cg")
    total = tl.where(largest == float("-inf"), 0.0, 1.0)
    for _piece in range(first + 1, used):
        place += piece_rows
        own = tl.load(lse_ptr + place, mask=valid, other=float("-inf"), cache_modifier=".cg")
        part = tl.load(parts_ptr + (place * WIDTH)[:, None] + e[None, :], mask=inside, other=0.0, cache_modifier=".cg")
        larger = tl.maximum(largest, own)
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        fade, weight = tl.exp2(largest - shift), tl.exp2(own - shift)
        o = o * fade[:, None] + part * weight[:, None]
        total = total * fade + weight
        largest = larger
    return o / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit(do_not_specialize=["num_rows", "table_width"])
def _piece_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    parts_ptr,
    lse_ptr,
    counters_ptr,
    new_k_ptr,
    new_v_ptr,
    new_rows_ptr,
    tiles_ptr,
    tables_ptr,
    num_rows,
    table_width,
    q_row,
    q_head,
    kv_row,
    kv_head,
    new_row,
    new_head,
    o_row,
    o_head,
    scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_UP: tl.constexpr,
    QUERIES: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    PIECE: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    IN_PIECES: tl.constexpr,
    STORES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, group, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(tiles_ptr + 4 * tile)
    count = tl.load(tiles_ptr + 4 * tile + 1)
    position = tl.load(tiles_ptr + 4 * tile + 2)
    table_ptr = tables_ptr + tl.load(tiles_ptr + 4 * tile + 3).to(tl.int64) * table_width
    m, e = tl.arange(0, M), tl.arange(0, WIDTH_UP)
    query, head = m // GROUP, group * GROUP + m % GROUP
    valid = (query < count) & (m < QUERIES * GROUP)
    rows, positions = (row + query).to(tl.int64), position + query
    inside = valid[:, None] & (e < WIDTH)[None, :]
    q = tl.load(q_ptr + (rows * q_row + head * q_head)[:, None] + e[None, :], mask=inside, other=0.0)
    begin, end = 0, position + count
    if IN_PIECES:
        begin = piece * PIECE
        end = tl.minimum(end, begin + PIECE)
    if WINDOW > 0:
        # whole blocks, so that blocks begin at the same positions for every query
        begin = tl.maximum(begin, (tl.maximum(position + 1 - WINDOW, 0)) // N * N)
    end = tl.where(count > 0, end, 0)
    if STORES:
        # the one program for these heads that also reads them: its own threads see what it stores
        if (position >= begin) & (position < end):
            place = tl.load(new_rows_ptr + row) * kv_row + group * kv_head + e
            new = row.to(tl.int64) * new_row + group * new_head + e
            tl.store(k_ptr + place, tl.load(new_k_ptr + new, mask=e < WIDTH, other=0.0), mask=e < WIDTH)
            tl.store(v_ptr + place, tl.load(new_v_ptr + new, mask=e < WIDTH, other=0.0), mask=e < WIDTH)
        tl.debug_barrier()
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    o = tl.zeros([M, WIDTH_UP], tl.float32)
    for key in range(begin, end, N):
        keys = key + tl.arange(0, N)
        there = keys < end
        pages = tl.load(table_ptr + keys // PAGE, mask=there, other=0).to(tl.int64)
        places = ((pages * PAGE + keys % PAGE) * kv_row + group * kv_head)[:, None] + e[None, :]
        loaded = there[:, None] & (e < WIDTH)[None, :]
        k = tl.load(k_ptr + places, mask=loaded, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        seen = (keys[None, :] <= positions[:, None]) & there[None, :]
        if WINDOW > 0:
            seen = seen & (keys[None, :] > positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # a block may hold nothing that a row sees: exp2(-inf - -inf) would be NaN
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(largest - shift)
        total = total * fade + tl.sum(weights, 1)
        v = tl.load(v_ptr + places, mask=loaded, other=0.0)
        o = o * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = larger
    o = o / tl.where(total == 0.0, 1.0, total)[:, None]
    places = (rows * o_row + head * o_head)[:, None] + e[None, :]
    if IN_PIECES:
        first, used = position * 0, (position + PIECE) // PIECE
        if WINDOW > 0:
            first = tl.maximum(position + 1 - WINDOW, 0) // PIECE
        # pieces past the sequence's end, or before its window, are not written
        if begin < end:
            if used - first == 1:
                tl.store(o_ptr + places, o.to(o_ptr.dtype.element_ty), mask=inside)
            else:
                place = (piece * num_rows + rows) * HEADS + head
                tl.store(parts_ptr + (place * WIDTH)[:, None] + e[None, :], o, mask=inside)
                lse = tl.where(total == 0.0, float("-inf"), largest + tl.log2(tl.where(total == 0.0, 1.0, total)))
                tl.store(lse_ptr + place, lse, mask=valid)
                if arrives_last(counters_ptr + tile * tl.num_programs(1) + group, used - first):
                    o = _joined(
                        parts_ptr, lse_ptr, first, used, num_rows * HEADS, rows * HEADS + head, e, valid, inside, WIDTH
                    )
                    tl.store(o_ptr + places, o.to(o_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(o_ptr + places, o.to(o_ptr.dtype.element_ty), mask=inside)


def paged_attention_forward(
    q_THE: Tensor,
    k_RGE: Tensor,
    v_RGE: Tensor,
    *,
    tiles: PagedTiles,
    page_rows: int,
    window: int | None,
    o_THE: Tensor,
    new: NewPages | None = None,
) -> None:
    """Write the output into the rows of the tiles; store ``new`` first, which tiles of one query can."""
    num_rows, num_heads, width = q_THE.shape
    group = num_heads // k_RGE.shape[1]
    num_tiles = len(tiles.tiles_N4)
    if num_tiles == 0:
        return
    in_pieces = tiles.queries == 1
    num_pieces = -(-tiles.most_keys // PIECE_KEYS) if in_pieces else 1
    # never read where they are not in use
    parts = q_THE.new_empty((num_pieces, num_rows, num_heads, width) if in_pieces else (1,), dtype=torch.float32)
    lse = q_THE.new_empty((num_pieces, num_rows, num_heads) if in_pieces else (1,), dtype=torch.float32)
    stored = (k_RGE, v_RGE, tiles.tiles_N4) if new is None else (new.k_TGE, new.v_TGE, new.rows_T)
    width_up = max(16, triton.next_power_of_2(width))
    # a product has at least 16 rows
    rows = max(16, triton.next_power_of_2(tiles.queries * group))
    precision = "ieee" if q_THE.dtype == torch.float32 else "tf32"
    with on_device_of(q_THE):
        _piece_kernel[(num_tiles, k_RGE.shape[1], num_pieces)](
            q_THE,
            k_RGE,
            v_RGE,
            o_THE,
            parts,
            lse,
            tiles.counters(k_RGE.shape[1]) if in_pieces else tiles.tiles_N4,
            *stored,
            tiles.tiles_N4,
            tiles.tables_SP,
            num_rows,
            tiles.tables_SP.shape[1],
            q_THE.stride(0),
            q_THE.stride(1),
            k_RGE.stride(0),
            k_RGE.stride(1),
            stored[0].stride(0),
            stored[0].stride(1),
            o_THE.stride(0),
            o_THE.stride(1),
            width**-0.5 * LOG2_E,
            HEADS=num_heads,
            GROUP=group,
            WIDTH=width,
            WIDTH_UP=width_up,
            QUERIES=tiles.queries,
            M=rows,
            N=KEYS,
            PIECE=PIECE_KEYS,
            PAGE=page_rows,
            WINDOW=window or 0,
            IN_PIECES=in_pieces,
            STORES=new is not None,
            PRECISION=precision,
            num_warps=4,
            num_stages=2,
        )


@triton.jit
def _store_kernel(
    k_ptr, v_ptr, keys_ptr, values_ptr, rows_ptr, k_row, v_row, pool_row, WIDTH: tl.constexpr, WIDTH_UP: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(rows_ptr + row) * pool_row
    e = tl.arange(0, WIDTH_UP)
    inside = e < WIDTH
    k = tl.load(k_ptr + row * k_row + e, mask=inside, other=0.0)
    v = tl.load(v_ptr + row * v_row + e, mask=inside, other=0.0)
    tl.store(keys_ptr + place + e, k, mask=inside)
    tl.store(values_ptr + place + e, v, mask=inside)


def store_pages(k_TGE: Tensor, v_TGE: Tensor, *, keys_RGE: Tensor, values_RGE: Tensor, rows_T: Tensor) -> None:
    """Store new keys and values at ``rows_T`` of the pool: one launch for both."""
    num_rows, width = k_TGE.shape[0], k_TGE.shape[1] * k_TGE.shape[2]
    # heads lie one after the other
    k_TX, v_TX = k_TGE.reshape(num_rows, width), v_TGE.reshape(num_rows, width)
    with on_device_of(k_TX):
        _store_kernel[(num_rows,)](
            k_TX,
            v_TX,
            keys_RGE,
            values_RGE,
            rows_T,
            k_TX.stride(0),
            v_TX.stride(0),
            keys_RGE.stride(0),
            WIDTH=width,
            WIDTH_UP=triton.next_power_of_2(width),
            num_warps=4,
        )
