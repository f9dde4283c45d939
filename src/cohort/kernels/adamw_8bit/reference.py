"""AdamW with 8-bit moments in plain torch: the definition, and the path of a CPU.

Each block of 256 entries of a rank row has a float32 scale, its largest size, and an 8-bit code for each entry: the
nearest value of the dynamic map, signed for the first moment and unsigned for the second. A step reads both moments in
float32, is AdamW's, and writes them back. A second moment above zero never becomes the zero of the map: the root of
what is left stands in a denominator.

Shapes:  R rank rows of the bank · r those of a chunk · D entries of a rank row · B blocks of a row · L their entries
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.adamw.reference import PIECE, norm_and_clip, update
from cohort.kernels.adamw.slot_update import SlotUpdate, StagedSlots
from cohort.kernels.dynamic_map import dynamic_map, nearest_codes

__all__ = ["BLOCK", "adamw_8bit_step", "read_moment"]

BLOCK = 256


def _blocks(x_rD: Tensor) -> Tensor:
    return F.pad(x_rD, (0, -x_rD.shape[1] % BLOCK)).view(x_rD.shape[0], -1, BLOCK)


def _rows(x_rBL: Tensor, width: int) -> Tensor:
    return x_rBL.flatten(1)[:, :width].contiguous()


def read_moment(codes_rD: Tensor, scales_rB: Tensor, *, signed: bool) -> Tensor:
    """Return a moment [r, D] in float32."""
    values = dynamic_map(signed=signed, device=codes_rD.device)[_blocks(codes_rD).long()]
    return _rows(values * scales_rB[:, :, None], codes_rD.shape[1])


def _write_moment(moment_rD: Tensor, codes_rD: Tensor, scales_rB: Tensor, *, signed: bool) -> None:
    moment_rBL = _blocks(moment_rD)
    largest_rB = moment_rBL.abs().amax(dim=2)
    scales_rB.copy_(largest_rB)
    over = moment_rBL / largest_rB.where(largest_rB != 0, 1.0)[:, :, None]
    codes = nearest_codes(over, dynamic_map(signed=signed, device=codes_rD.device))
    if not signed:
        codes = torch.where(over > 0, codes.clamp(min=1), codes)
    codes_rD.copy_(_rows(codes, codes_rD.shape[1]))


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
    slots = slots.slots if isinstance(slots, StagedSlots) else slots
    norms_S = torch.zeros(len(slots), dtype=params_RD.dtype, device=params_RD.device)
    # pieces that stay in the caches, of whole rows
    chunk = max(1, PIECE // max(1, params_RD.shape[1]))
    for index, slot in enumerate(slots):
        stop = slot.row_start + slot.rank
        norms_S[index], clip = norm_and_clip(grads_RD[slot.row_start : stop], slot)
        rates_D = None
        if scaled_D is not None and slot.scaled_rate != 1.0:
            rates_D = torch.where(scaled_D, slot.scaled_rate, 1.0).to(grads_RD.dtype)
        for start in range(slot.row_start, stop, chunk):
            rows = slice(start, min(stop, start + chunk))
            means, squares = (tuple(part[rows] for part in moment) for moment in (exp_avg, exp_avg_sq))
            mean_rD, square_rD = read_moment(*means, signed=True), read_moment(*squares, signed=False)
            update(params_RD[rows], grads_RD[rows], mean_rD, square_rD, slot=slot, clip=clip, rates=rates_D)
            _write_moment(mean_rD, *means, signed=True)
            _write_moment(square_rD, *squares, signed=False)
            if compute_RD is not None:
                compute_RD[rows].copy_(params_RD[rows])
            if zero_grads:
                grads_RD[rows].zero_()
    return norms_S
