"""The public op: every slot's optimizer step at once, with moments in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.adamw.slot_update import SlotUpdate, StagedSlots, check_slots
from cohort.kernels.adamw_8bit.reference import BLOCK
from cohort.kernels.backend import Backend, choose_backend, implementation

__all__ = ["BLOCK", "BlockMoment", "adamw_8bit_step"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockMoment:
    """A moment of a bank in 8 bits; zeros mean zero.

    Attributes:
        codes_RD: uint8 [R, D], places in the dynamic map.
        scales_RB: float32 [R, ceil(D / 256)], one for each block of a rank row.
    """

    codes_RD: Tensor
    scales_RB: Tensor


@torch.no_grad()
def adamw_8bit_step(
    params_RD: Tensor,
    *,
    grads_RD: Tensor,
    exp_avg: BlockMoment,
    exp_avg_sq: BlockMoment,
    slots: Sequence[SlotUpdate] | StagedSlots,
    compute_RD: Tensor | None = None,
    scaled_D: Tensor | None = None,
    zero_grads: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """Clip and step every slot in place as :func:`cohort.kernels.adamw.adamw_step` does, whose arguments these are.

    Moments are read in float32 and written back in 8 bits, in blocks of 256 entries of a rank row, so no block belongs
    to two slots and a slot's numbers do not depend on its place.

    Raises:
        ShapeError: the matrices differ in shape or are not contiguous, or a moment has other blocks.
        SegmentError: slots overlap or leave the bank.

    Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (ICLR 2022). We differ: blocks end with
    their rank row, and a second moment above zero keeps the smallest value of the map.
    """
    num_rows, width = params_RD.shape
    num_blocks = -(-width // BLOCK)
    matrices = {"params": (params_RD, width), "grads": (grads_RD, width)}
    matrices |= {} if compute_RD is None else {"compute": (compute_RD, width)}
    for name, moment in (("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)):
        matrices |= {f"{name} codes": (moment.codes_RD, width), f"{name} scales": (moment.scales_RB, num_blocks)}
    for name, (matrix, columns) in matrices.items():
        if tuple(matrix.shape) != (num_rows, columns) or not matrix.is_contiguous():
            raise ShapeError(
                f"{name} is {tuple(matrix.shape)}, {'' if matrix.is_contiguous() else 'not '}contiguous; expected "
                f"({num_rows}, {columns}), contiguous"
            )
    if scaled_D is not None and scaled_D.shape != params_RD.shape[1:]:
        raise ShapeError(f"scaled is {tuple(scaled_D.shape)}; it has one entry for each column of {params_RD.shape}")
    check_slots(slots.slots if isinstance(slots, StagedSlots) else slots, num_rows=num_rows)
    norms_S: Tensor = implementation("adamw_8bit", choose_backend(params_RD, backend=backend)).adamw_8bit_step(
        params_RD,
        grads_RD=grads_RD,
        exp_avg=(exp_avg.codes_RD, exp_avg.scales_RB),
        exp_avg_sq=(exp_avg_sq.codes_RD, exp_avg_sq.scales_RB),
        slots=slots,
        compute_RD=compute_RD,
        scaled_D=scaled_D,
        zero_grads=zero_grads,
    )
    return norms_S
