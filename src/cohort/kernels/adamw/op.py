"""The public op: every slot's optimizer step at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.adamw.slot_update import SlotUpdate, StagedSlots, check_slots
from cohort.kernels.backend import Backend, choose_backend, implementation

__all__ = ["adamw_step"]


@torch.no_grad()
def adamw_step(
    params_RD: Tensor,
    *,
    grads_RD: Tensor,
    exp_avg_RD: Tensor,
    exp_avg_sq_RD: Tensor,
    slots: Sequence[SlotUpdate] | StagedSlots,
    compute_RD: Tensor | None = None,
    scaled_D: Tensor | None = None,
    zero_grads: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """Clip and step every slot in place, each with its own settings; return the gradient norms before clipping, [S].

    Per slot: ``torch.nn.utils.clip_grad_norm_`` over all its rows, then ``torch.optim.AdamW`` (decoupled decay, bias
    correction). Rows of no listed slot are neither read nor written; a non-finite gradient poisons its own slot only.
    Nothing is copied to the host: the norms stay on the device, in the order of ``slots``.

    Args:
        params_RD: Masters, one row per rank row of the bank.
        grads_RD: Gradients. Left as they are (not clipped) unless ``zero_grads``.
        slots: The slots that step; a slot owns ``rank`` consecutive rows. Staged ones are for CUDA graphs: stage before
            the capture, stage the next step into the same memory before each replay. The norms then have a place for
            every slot that was staged at the capture.
        compute_RD: Low-precision copy of the masters, refreshed in the rows of ``slots``.
        scaled_D: bool [D], the columns whose rate is ``scaled_rate`` times the slot's; None: no column.
        zero_grads: Also set the gradients of ``slots`` to zero.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: the matrices differ in shape or are not contiguous, or ``scaled`` is not as wide as they are.
        SegmentError: slots overlap or leave the bank.
    """
    matrices = {"grads": grads_RD, "exp_avg": exp_avg_RD, "exp_avg_sq": exp_avg_sq_RD}
    if compute_RD is not None:
        matrices["compute"] = compute_RD
    for name, matrix in {"params": params_RD, **matrices}.items():
        if matrix.shape != params_RD.shape or matrix.ndim != 2 or not matrix.is_contiguous():
            raise ShapeError(
                f"{name} is {tuple(matrix.shape)}, {'' if matrix.is_contiguous() else 'not '}contiguous; "
                f"a bank's matrices are contiguous [R, D] like params {tuple(params_RD.shape)}"
            )
    if scaled_D is not None and scaled_D.shape != params_RD.shape[1:]:
        raise ShapeError(f"scaled is {tuple(scaled_D.shape)}; it has one entry for each column of {params_RD.shape}")
    check_slots(slots.slots if isinstance(slots, StagedSlots) else slots, num_rows=params_RD.shape[0])
    norms_S: Tensor = implementation("adamw", choose_backend(params_RD, backend=backend)).adamw_step(
        params_RD,
        grads_RD=grads_RD,
        exp_avg_RD=exp_avg_RD,
        exp_avg_sq_RD=exp_avg_sq_RD,
        slots=slots,
        compute_RD=compute_RD,
        scaled_D=scaled_D,
        zero_grads=zero_grads,
    )
    return norms_S
