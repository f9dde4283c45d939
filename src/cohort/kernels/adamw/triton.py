"""AdamW for all slots on the GPU: partial norms, one norm per slot, the update. Three launches whatever the slots.

Sums are taken in a fixed order that depends on the slot's own size alone, so a slot steps alike in any bank.

Shapes:  R rows of the bank · D entries of a rank row · A rows that step (rows of the staged table)
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.adamw.slot_update import Column, SlotUpdate, StagedSlots, stage_slots
from cohort.kernels.backend import on_device_of

__all__ = ["adamw_step", "norms_and_clips", "stepped"]

NORM_BLOCK = 4096
NORM_BLOCKS_PER_PROGRAM = 8
UPDATE_BLOCK = 1024
PARTIALS_BLOCK = 1024
NORM_EPS = tl.constexpr(1e-6)  # of torch.nn.utils.clip_grad_norm_

BANK_ROW = tl.constexpr(Column.BANK_ROW)
SLOT = tl.constexpr(Column.SLOT)
FIRST = tl.constexpr(Column.FIRST)
RANK = tl.constexpr(Column.RANK)
DECAY = tl.constexpr(Column.DECAY)
ONE_MINUS_BETA1 = tl.constexpr(Column.ONE_MINUS_BETA1)
BETA2 = tl.constexpr(Column.BETA2)
ONE_MINUS_BETA2 = tl.constexpr(Column.ONE_MINUS_BETA2)
STEP_SIZE = tl.constexpr(Column.STEP_SIZE)
INVERSE_ROOT_CORRECTION2 = tl.constexpr(Column.INVERSE_ROOT_CORRECTION2)
EPS = tl.constexpr(Column.EPS)
MAX_GRAD_NORM = tl.constexpr(Column.MAX_GRAD_NORM)
SCALED_RATE = tl.constexpr(Column.SCALED_RATE)
COUNT = tl.constexpr(Column.COUNT)


@triton.jit
def _partial_norms_kernel(
    grads_ptr, table_ptr, partials_ptr, width, num_partials, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    table_row, part = tl.program_id(1), tl.program_id(0)
    bank_row = tl.load(table_ptr + table_row * COUNT + BANK_ROW).to(tl.int64)
    if bank_row >= 0:
        sums = tl.zeros([BLOCK], dtype=tl.float32)
        for index in range(BLOCKS):
            columns = (part * BLOCKS + index) * BLOCK + tl.arange(0, BLOCK)
            grads = tl.load(grads_ptr + bank_row * width + columns, mask=columns < width, other=0.0).to(tl.float32)
            sums += grads * grads
        tl.store(partials_ptr + table_row * num_partials + part, tl.sum(sums, axis=0))


@triton.jit
def _slot_norms_kernel(partials_ptr, table_ptr, norms_ptr, clips_ptr, num_partials, BLOCK: tl.constexpr):
    table_row = tl.program_id(0)
    settings = table_ptr + table_row * COUNT
    first = tl.load(settings + FIRST).to(tl.int32)
    if (tl.load(settings + BANK_ROW) >= 0.0) & (first == table_row):
        count = tl.load(settings + RANK).to(tl.int32) * num_partials  # a slot's rows follow each other in the table
        sums = tl.zeros([BLOCK], dtype=tl.float32)
        steps = tl.arange(0, BLOCK)
        start = 0
        while start < count:  # not range(): Triton 3.6's interpreter takes no bound from memory
            mask = start + steps < count
            sums += tl.load(partials_ptr + table_row * num_partials + start + steps, mask=mask, other=0.0)
            start += BLOCK
        norm = tl.sqrt_rn(tl.sum(sums, axis=0))
        slot = tl.load(settings + SLOT).to(tl.int32)
        max_norm = tl.load(settings + MAX_GRAD_NORM)
        clip = max_norm / (norm + NORM_EPS)
        clip = tl.where(clip > 1.0, 1.0, clip)  # keeps NaN, as torch's clamp does
        tl.store(norms_ptr + slot, norm)
        tl.store(clips_ptr + slot, tl.where(max_norm < 0.0, 1.0, clip))


@triton.jit
def stepped(params, grads, exp_avg, exp_avg_sq, settings, scaled_ptr, columns, mask, HAS_SCALED: tl.constexpr):
    """Return parameters and moments after a step of AdamW with clipped gradients; all are float32 tiles."""
    decay, step_size = tl.load(settings + DECAY), tl.load(settings + STEP_SIZE)
    if HAS_SCALED:
        # a rate of 1 changes no bit: what is multiplied by it stays as it is
        is_scaled = tl.load(scaled_ptr + columns, mask=mask, other=0) != 0
        rate = tl.where(is_scaled, tl.load(settings + SCALED_RATE), 1.0)
        decay, step_size = decay * rate, step_size * rate
    params -= params * decay
    exp_avg += (grads - exp_avg) * tl.load(settings + ONE_MINUS_BETA1)
    exp_avg_sq = exp_avg_sq * tl.load(settings + BETA2) + grads * grads * tl.load(settings + ONE_MINUS_BETA2)
    root = tl.sqrt_rn(exp_avg_sq) * tl.load(settings + INVERSE_ROOT_CORRECTION2)
    params -= step_size * exp_avg / (root + tl.load(settings + EPS))
    return params, exp_avg, exp_avg_sq


@triton.jit
def _update_kernel(
    params_ptr,
    grads_ptr,
    exp_avg_ptr,
    exp_avg_sq_ptr,
    compute_ptr,
    scaled_ptr,
    table_ptr,
    clips_ptr,
    width,
    BLOCK: tl.constexpr,
    HAS_COMPUTE: tl.constexpr,
    HAS_SCALED: tl.constexpr,
    ZERO_GRADS: tl.constexpr,
):
    settings = table_ptr + tl.program_id(1) * COUNT
    bank_row = tl.load(settings + BANK_ROW).to(tl.int64)
    if bank_row >= 0:
        columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = columns < width
        places = bank_row * width + columns
        params = tl.load(params_ptr + places, mask=mask, other=0.0)
        grads = tl.load(grads_ptr + places, mask=mask, other=0.0).to(tl.float32)
        exp_avg = tl.load(exp_avg_ptr + places, mask=mask, other=0.0)
        exp_avg_sq = tl.load(exp_avg_sq_ptr + places, mask=mask, other=0.0)
        grads *= tl.load(clips_ptr + tl.load(settings + SLOT).to(tl.int32))
        params, exp_avg, exp_avg_sq = stepped(
            params, grads, exp_avg, exp_avg_sq, settings, scaled_ptr, columns, mask, HAS_SCALED
        )
        tl.store(params_ptr + places, params, mask=mask)
        tl.store(exp_avg_ptr + places, exp_avg, mask=mask)
        tl.store(exp_avg_sq_ptr + places, exp_avg_sq, mask=mask)
        if HAS_COMPUTE:
            tl.store(compute_ptr + places, params.to(compute_ptr.dtype.element_ty), mask=mask)
        if ZERO_GRADS:
            tl.store(grads_ptr + places, tl.zeros([BLOCK], dtype=grads_ptr.dtype.element_ty), mask=mask)


def norms_and_clips(grads_RD: Tensor, table_AC: Tensor) -> tuple[Tensor, Tensor]:
    """Return each staged slot's gradient norm and what its gradient is multiplied by, float32 [A]."""
    num_steps, width = table_AC.shape[0], grads_RD.shape[1]
    norms_A = torch.zeros(num_steps, dtype=torch.float32, device=grads_RD.device)  # there are no more slots than rows
    clips_A = torch.empty_like(norms_A)
    if num_steps == 0 or width == 0:
        return norms_A, clips_A
    num_partials = triton.cdiv(width, NORM_BLOCK * NORM_BLOCKS_PER_PROGRAM)
    partials_AP = torch.empty(num_steps, num_partials, dtype=torch.float32, device=grads_RD.device)
    with on_device_of(grads_RD):
        _partial_norms_kernel[(num_partials, num_steps)](
            grads_RD,
            table_AC,
            partials_AP,
            width,
            num_partials,
            BLOCK=NORM_BLOCK,
            BLOCKS=NORM_BLOCKS_PER_PROGRAM,
            num_warps=8,
        )
        _slot_norms_kernel[(num_steps,)](
            partials_AP, table_AC, norms_A, clips_A, num_partials, BLOCK=PARTIALS_BLOCK, num_warps=4
        )
    return norms_A, clips_A


def adamw_step(
    params_RD: Tensor,
    *,
    grads_RD: Tensor,
    exp_avg_RD: Tensor,
    exp_avg_sq_RD: Tensor,
    slots: Sequence[SlotUpdate] | StagedSlots,
    compute_RD: Tensor | None,
    scaled_D: Tensor | None,
    zero_grads: bool,
) -> Tensor:
    staged = slots if isinstance(slots, StagedSlots) else stage_slots(slots, device=params_RD.device)
    table_AC, width = staged.table_AC, params_RD.shape[1]
    num_steps = table_AC.shape[0]
    norms_A, clips_A = norms_and_clips(grads_RD, table_AC)
    if num_steps == 0 or width == 0:
        return norms_A[: len(staged.slots)]
    with on_device_of(params_RD):
        _update_kernel[(triton.cdiv(width, UPDATE_BLOCK), num_steps)](
            params_RD,
            grads_RD,
            exp_avg_RD,
            exp_avg_sq_RD,
            params_RD if compute_RD is None else compute_RD,
            table_AC if scaled_D is None else scaled_D,
            table_AC,
            clips_A,
            width,
            BLOCK=UPDATE_BLOCK,
            HAS_COMPUTE=compute_RD is not None,
            HAS_SCALED=scaled_D is not None,
            ZERO_GRADS=zero_grads,
            num_warps=4,
        )
    return norms_A[: len(staged.slots)]
