"""AdamW per slot in plain torch: ``clip_grad_norm_`` and ``torch.optim.AdamW``, operation by operation.

A slot's rows are one block of memory, worked through in pieces that stay in the caches. Pieces are counted from the
slot's own start, so that its bits do not depend on where in the bank it stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.adamw.slot_update import SlotUpdate, StagedSlots

__all__ = ["adamw_step", "norm_and_clip", "update"]

PIECE = 1 << 16
# a cache line of float32: torch hands its threads whole ones, and no vector holds more
LANES = 16
NORM_EPS = 1e-6  # of torch.nn.utils.clip_grad_norm_


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
    slots = slots.slots if isinstance(slots, StagedSlots) else slots
    norms_S = torch.zeros(len(slots), dtype=params_RD.dtype, device=params_RD.device)
    for index, slot in enumerate(slots):
        rows = slice(slot.row_start, slot.row_start + slot.rank)
        grads = grads_RD[rows].reshape(-1)
        norms_S[index], clip = norm_and_clip(grads, slot)
        params, exp_avg, exp_avg_sq = (tensor[rows].view(-1) for tensor in (params_RD, exp_avg_RD, exp_avg_sq_RD))
        rates = None
        if scaled_D is not None and slot.scaled_rate != 1.0:
            rates = (1.0 + (slot.scaled_rate - 1.0) * scaled_D.to(grads.dtype)).repeat(slot.rank)
        for start in range(0, grads.shape[0], PIECE):
            piece = slice(start, start + PIECE)
            own = None if rates is None else rates[piece]
            update(params[piece], grads[piece], exp_avg[piece], exp_avg_sq[piece], slot=slot, clip=clip, rates=own)
        if compute_RD is not None:
            compute_RD[rows].copy_(params_RD[rows])
        if zero_grads:
            grads_RD[rows].zero_()
    return norms_S


def norm_and_clip(grads: Tensor, slot: SlotUpdate) -> tuple[Tensor, Tensor | None]:
    """Return the norm of a slot's gradient and what the gradient is multiplied by; None where it is left alone."""
    # in float32 torch sums squares in long runs: at r = 64 that error alone was 2.5 times PEFT's own rounding
    norm = torch.linalg.vector_norm(grads, dtype=torch.float64).to(grads.dtype)
    if slot.max_grad_norm is None:
        return norm, None
    return norm, torch.clamp(slot.max_grad_norm / (norm + NORM_EPS), max=1.0)


def update(
    params: Tensor,
    grads: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    slot: SlotUpdate,
    clip: Tensor | None,
    rates: Tensor | None,
) -> None:
    """Step parameters and moments in place; ``rates`` are those of scaled entries over the slot's."""
    if clip is not None:
        grads = grads * clip
    tensors = (params, grads, exp_avg, exp_avg_sq)
    is_plain = params.device.type == "cpu" and all(one.dtype == params.dtype and one.is_contiguous() for one in tensors)
    if rates is None and is_plain:
        _fused(*(one.view(-1) for one in tensors), slot=slot)
        return
    decay = slot.learning_rate * slot.weight_decay
    params.mul_(1 - decay if rates is None else 1 - decay * rates)
    exp_avg.lerp_(grads, 1 - slot.beta1)
    exp_avg_sq.mul_(slot.beta2).addcmul_(grads, grads, value=1 - slot.beta2)
    step_size = slot.learning_rate / (1 - slot.beta1**slot.step)
    denominator = (exp_avg_sq.sqrt() / math.sqrt(1 - slot.beta2**slot.step)).add_(slot.eps)
    params.addcdiv_(exp_avg if rates is None else exp_avg * rates, denominator, value=-step_size)


def _fused(params: Tensor, grads: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, slot: SlotUpdate) -> None:
    """Step by torch's own fused kernel: one pass over the memory, not nine.

    It computes what no vector is filled with entry by entry, and rounds otherwise there. Which entries these are would
    follow from how many a process holds, so that a stage of a pipeline had other bits: they fill a vector here.
    """
    count = params.shape[0]
    rest = count % LANES
    tensors = (params, grads, exp_avg, exp_avg_sq)
    if count > rest:
        _fused_vectors(*(tensor[: count - rest] for tensor in tensors), slot=slot)
    if rest:
        filled = [F.pad(tensor[count - rest :], (0, LANES - rest)) for tensor in tensors]
        _fused_vectors(*filled, slot=slot)
        for tensor, own in zip(tensors, filled, strict=True):
            if tensor is not grads:
                tensor[count - rest :] = own[:rest]


def _fused_vectors(params: Tensor, grads: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, slot: SlotUpdate) -> None:
    torch._fused_adamw_(
        [params],
        [grads],
        [exp_avg],
        [exp_avg_sq],
        [],
        [torch.tensor(float(slot.step))],
        lr=slot.learning_rate,
        beta1=slot.beta1,
        beta2=slot.beta2,
        weight_decay=slot.weight_decay,
        eps=slot.eps,
        amsgrad=False,
        maximize=False,
    )
