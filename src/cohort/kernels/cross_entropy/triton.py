"""Cross-entropy of logit rows on the GPU: one read for the running log-sum-exp, one read and write for the gradient.

Shapes:  C rows of one chunk · V vocabulary
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cohort.kernels.backend import on_device_of

__all__ = ["cross_entropy_rows"]

# A thread keeps its own running maximum and sum over four loads in flight, so the loop has no barrier in it.
BLOCK = 2048
STEPS_PER_TURN = 4
NUM_WARPS = 8


@triton.jit
def _cross_entropy_kernel(
    logits_ptr,
    targets_ptr,
    losses_ptr,
    scales_ptr,
    row_stride,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    TURN: tl.constexpr,
    WITH_GRADIENT: tl.constexpr,
    SCALED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    target = tl.load(targets_ptr + row)
    columns = tl.arange(0, BLOCK)
    if target == -100:
        tl.store(losses_ptr + row, 0.0)
        if WITH_GRADIENT:
            zero = tl.zeros([BLOCK], dtype=tl.float32).to(logits_ptr.dtype.element_ty)
            for start in range(0, VOCABULARY, BLOCK):
                tl.store(logits_ptr + start + columns, zero, mask=start + columns < VOCABULARY)
    else:
        inside = (target >= 0) & (target < VOCABULARY)
        target_logit = tl.load(logits_ptr + target, mask=inside, other=float("nan")).to(tl.float32)
        factor = 1.0
        if SCALED:
            factor = tl.load(scales_ptr + row)
            target_logit = target_logit * factor
        # finite, so that -inf logits (and padding) never meet as inf - inf
        running_max = tl.full([BLOCK], -3.0e38, dtype=tl.float32)
        running_sum = tl.zeros([BLOCK], dtype=tl.float32)
        steps = tl.arange(0, TURN)[:, None] * BLOCK + columns[None, :]  # a column of steps is one thread's
        for start in range(0, VOCABULARY, BLOCK * TURN):
            mask = start + steps < VOCABULARY
            x = tl.load(logits_ptr + start + steps, mask=mask, other=float("-inf")).to(tl.float32)
            if SCALED:
                x = x * factor
            turn_max = tl.maximum(running_max, tl.max(x, axis=0))
            running_sum = running_sum * tl.exp(running_max - turn_max) + tl.sum(tl.exp(x - turn_max[None, :]), axis=0)
            running_max = turn_max
        largest = tl.max(running_max, axis=0)
        total = tl.sum(running_sum * tl.exp(running_max - largest), axis=0)
        tl.store(losses_ptr + row, tl.log(total) + (largest - target_logit))
        if WITH_GRADIENT:
            scale = 1.0 / total
            tl.debug_barrier()  # the target's logit is read before its place is overwritten
            for start in range(0, VOCABULARY, BLOCK * TURN):
                places = start + steps
                mask = places < VOCABULARY
                x = tl.load(logits_ptr + places, mask=mask, other=float("-inf")).to(tl.float32)
                if SCALED:
                    x = x * factor
                gradient = tl.exp(x - largest) * scale - tl.where(places == target, 1.0, 0.0)
                if SCALED:
                    gradient = gradient * factor
                tl.store(logits_ptr + places, gradient.to(logits_ptr.dtype.element_ty), mask=mask)


def cross_entropy_rows(
    logits_CV: Tensor, *, targets_C: Tensor, with_gradient: bool, scales_C: Tensor | None = None
) -> Tensor:
    """Return each row's loss [C] in float32; with ``with_gradient`` the logits become their gradient in place.

    ``scales_C`` (positive) multiply the logits of each row first, in float32.
    """
    assert logits_CV.stride(1) == 1, "the head returns rows of logits that lie densely: the gradient is written there"
    num_rows, vocabulary = logits_CV.shape
    losses_C = torch.empty(num_rows, dtype=torch.float32, device=logits_CV.device)
    if num_rows:
        block = min(BLOCK, triton.next_power_of_2(vocabulary))
        with on_device_of(logits_CV):
            _cross_entropy_kernel[(num_rows,)](
                logits_CV,
                targets_C,
                losses_C,
                targets_C if scales_C is None else scales_C.to(torch.float32),
                logits_CV.stride(0),
                VOCABULARY=vocabulary,
                BLOCK=block,
                TURN=STEPS_PER_TURN,
                WITH_GRADIENT=with_gradient,
                SCALED=scales_C is not None,
                num_warps=max(1, NUM_WARPS * block // BLOCK),
            )
    return losses_C
