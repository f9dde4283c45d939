"""AdamW with 8-bit moments on the GPU: the norms of AdamW's own launches, and an update that reads and writes codes.

Shapes:  R rows of the bank · D entries of a rank row · A rows that step · blocks of 256 entries of a row
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.adamw.slot_update import Column, SlotUpdate, StagedSlots, stage_slots
from cohort.kernels.adamw.triton import norms_and_clips, stepped
from cohort.kernels.adamw_8bit.reference import BLOCK
from cohort.kernels.backend import on_device_of
from cohort.kernels.dynamic_map import dynamic_map, nearest_codes
from cohort.kernels.fp8_product.triton import divided, inverse_of

__all__ = ["adamw_8bit_step"]

BANK_ROW = tl.constexpr(Column.BANK_ROW)
SLOT = tl.constexpr(Column.SLOT)
COUNT = tl.constexpr(Column.COUNT)
# blocks of a program: 1,024 entries by 4 warps, as AdamW's update
BLOCKS_PER_PROGRAM = 4


# A float's sign, exponent and first seven bits of its fraction name a range of values; between 2^-24 and 1 each range
# holds one middle of the map at most.
FRACTION_BITS = 7
SHIFT = tl.constexpr(23 - FRACTION_BITS)
FIRST_RANGE = tl.constexpr((127 - 24) << FRACTION_BITS)
NUM_RANGES = tl.constexpr((24 << FRACTION_BITS) + 1)


@triton.jit
def nearest_code(x, middles_ptr, ranges_ptr):
    """Return how many of 255 ascending middles lie below x in [-1, 1]: the code of the nearest value of the map.

    Two loads: the code of the lowest value in x's range of floats, and the middle above it.
    """
    bits = x.to(tl.int32, bitcast=True)
    # zero and what is below all middles is in the first range, NaN in the last
    place = ((bits & 0x7FFFFFFF) >> SHIFT) - FIRST_RANGE
    place = tl.minimum(tl.maximum(place, 0), NUM_RANGES - 1)
    code = tl.load(ranges_ptr + tl.where(bits < 0, place + NUM_RANGES, place)).to(tl.int32)
    return code + (x > tl.load(middles_ptr + code)).to(tl.int32)


@triton.jit
def _quotients(moment, largest):
    """Return the entries of blocks over their scales, with a division's bits."""
    # an inverse of what is next to nothing would be infinite: both are made larger first, by a power of two
    factors = tl.where(largest < 1e-30, 1.8446744073709552e19, 1.0)
    scales = tl.where(largest != 0.0, largest * factors, 1.0)
    return divided(moment * factors[:, None], scales[:, None], inverse_of(scales)[:, None])


@triton.jit
def _update_kernel(
    params_ptr,
    grads_ptr,
    mean_codes_ptr,
    mean_scales_ptr,
    square_codes_ptr,
    square_scales_ptr,
    compute_ptr,
    scaled_ptr,
    table_ptr,
    clips_ptr,
    maps_ptr,
    ranges_ptr,
    width,
    num_blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_COMPUTE: tl.constexpr,
    HAS_SCALED: tl.constexpr,
    ZERO_GRADS: tl.constexpr,
):
    settings = table_ptr + tl.program_id(1) * COUNT
    bank_row = tl.load(settings + BANK_ROW).to(tl.int64)
    if bank_row >= 0:
        blocks = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
        columns = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        mask = columns < width
        there = blocks < num_blocks
        places, scale_places = bank_row * width + columns, bank_row * num_blocks + blocks
        params = tl.load(params_ptr + places, mask=mask, other=0.0)
        grads = tl.load(grads_ptr + places, mask=mask, other=0.0).to(tl.float32)
        mean_codes = tl.load(mean_codes_ptr + places, mask=mask, other=0).to(tl.int32)
        square_codes = tl.load(square_codes_ptr + places, mask=mask, other=0).to(tl.int32)
        mean_scales = tl.load(mean_scales_ptr + scale_places, mask=there, other=0.0)
        square_scales = tl.load(square_scales_ptr + scale_places, mask=there, other=0.0)
        # values of the signed map, their middles, values of the unsigned map, their middles: 256 places each
        mean = tl.load(maps_ptr + mean_codes) * mean_scales[:, None]
        square = tl.load(maps_ptr + 512 + square_codes) * square_scales[:, None]
        grads *= tl.load(clips_ptr + tl.load(settings + SLOT).to(tl.int32))
        params, mean, square = stepped(params, grads, mean, square, settings, scaled_ptr, columns, mask, HAS_SCALED)
        tl.store(params_ptr + places, params, mask=mask)
        mean, square = tl.where(mask, mean, 0.0), tl.where(mask, square, 0.0)
        mean_scales, square_scales = tl.max(tl.abs(mean), axis=1), tl.max(square, axis=1)
        tl.store(mean_scales_ptr + scale_places, mean_scales, mask=there)
        tl.store(square_scales_ptr + scale_places, square_scales, mask=there)
        codes = nearest_code(_quotients(mean, mean_scales), maps_ptr + 256, ranges_ptr)
        tl.store(mean_codes_ptr + places, codes.to(tl.uint8), mask=mask)
        over = _quotients(square, square_scales)
        codes = nearest_code(over, maps_ptr + 768, ranges_ptr + 2 * NUM_RANGES)
        # what is above zero stays above zero: its root will be divided by
        codes = tl.where((over > 0.0) & (codes == 0), 1, codes)
        tl.store(square_codes_ptr + places, codes.to(tl.uint8), mask=mask)
        if HAS_COMPUTE:
            tl.store(compute_ptr + places, params.to(compute_ptr.dtype.element_ty), mask=mask)
        if ZERO_GRADS:
            tl.store(grads_ptr + places, tl.zeros([BLOCKS, BLOCK], dtype=grads_ptr.dtype.element_ty), mask=mask)


@functools.lru_cache(maxsize=16)
def maps(device: torch.device) -> Tensor:
    """Return values and middles of both maps, float32 [1024]."""
    tables = []
    for signed in (True, False):
        values = dynamic_map(signed=signed)
        # nothing lies above the last value
        tables += [values, torch.nn.functional.pad((values[:-1] + values[1:]) / 2.0, (0, 1), value=torch.inf)]
    return torch.cat(tables).to(device)


@functools.lru_cache(maxsize=16)
def ranges(device: torch.device) -> Tensor:
    """Return the code of the lowest value in each range of floats, uint8: the signed map's, the unsigned map's.

    Of each, ranges above zero and then those below.
    """
    # a range ends where the next begins; the last holds 1 alone
    first, count, shift = FIRST_RANGE.value, NUM_RANGES.value, SHIFT.value
    ends = ((torch.arange(count + 1, dtype=torch.int32) + first) << shift).view(torch.float32)
    starts = ends[:-1].clone()
    starts[0] = 0.0
    below = -torch.nextafter(ends[1:], torch.tensor(0.0))
    tables = []
    for signed in (True, False):
        values = dynamic_map(signed=signed)
        tables += [nearest_codes(starts, values), nearest_codes(below, values)]
    return torch.cat(tables).to(device)


def adamw_8bit_step(
    params_RD: Tensor,
    *,
    grads_RD: Tensor,
    exp_avg: tuple[Tensor, Tensor],
    exp_avg_sq: tuple[Tensor, Tensor],
    slots: Sequence[SlotUpdate] | StagedSlots,
    compute_RD: Tensor | None,
    scaled_D: Tensor | None,
    zero_grads: bool,
) -> Tensor:
    staged = slots if isinstance(slots, StagedSlots) else stage_slots(slots, device=params_RD.device)
    table_AC, width = staged.table_AC, params_RD.shape[1]
    num_steps, num_blocks = table_AC.shape[0], -(-width // BLOCK)
    norms_A, clips_A = norms_and_clips(grads_RD, table_AC)
    if num_steps == 0 or width == 0:
        return norms_A[: len(staged.slots)]
    with on_device_of(params_RD):
        _update_kernel[(triton.cdiv(num_blocks, BLOCKS_PER_PROGRAM), num_steps)](
            params_RD,
            grads_RD,
            *exp_avg,
            *exp_avg_sq,
            params_RD if compute_RD is None else compute_RD,
            table_AC if scaled_D is None else scaled_D,
            table_AC,
            clips_A,
            maps(params_RD.device),
            ranges(params_RD.device),
            width,
            num_blocks,
            BLOCK=BLOCK,
            BLOCKS=BLOCKS_PER_PROGRAM,
            HAS_COMPUTE=compute_RD is not None,
            HAS_SCALED=scaled_D is not None,
            ZERO_GRADS=zero_grads,
            num_warps=4,
        )
    return norms_A[: len(staged.slots)]
