"""Cross-entropy of rows of logits in plain torch; the gradient is written over the logits."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cross_entropy_rows"]


def cross_entropy_rows(
    logits_CV: Tensor, *, targets_C: Tensor, with_gradient: bool, scales_C: Tensor | None = None
) -> Tensor:
    """Return each row's loss [C], float32 (float64 for float64 logits); see ``linear_cross_entropy`` for the targets.

    With ``with_gradient`` the logits are overwritten by their own gradient ``softmax - onehot``. ``scales_C`` multiply
    the logits of each row first, in the precision of the losses.
    """
    working = torch.promote_types(logits_CV.dtype, torch.float32)
    work_CV = logits_CV.to(working)
    scales_C1 = None if scales_C is None else scales_C.to(working).unsqueeze(1)
    if scales_C1 is not None:
        work_CV = work_CV.mul_(scales_C1) if with_gradient and work_CV.dtype == logits_CV.dtype else work_CV * scales_C1
    trained_C = targets_C != -100
    inside_C = (targets_C >= 0) & (targets_C < logits_CV.shape[1])
    index_C1 = torch.where(inside_C, targets_C, 0).unsqueeze(1)
    largest_C1 = work_CV.amax(-1, keepdim=True)
    target_C1 = work_CV.gather(1, index_C1)
    # over the logits themselves where they will be overwritten anyhow
    in_place = with_gradient and work_CV.dtype == logits_CV.dtype
    exponentials_CV = (work_CV.sub_(largest_C1) if in_place else work_CV - largest_C1).exp_()
    sums_C1 = exponentials_CV.sum(-1, keepdim=True)
    losses_C = (sums_C1.log() + (largest_C1 - target_C1)).squeeze(1)
    losses_C = torch.where(inside_C, losses_C, torch.nan)  # a label outside the vocabulary must show
    if with_gradient:
        exponentials_CV /= sums_C1
        exponentials_CV.scatter_add_(1, index_C1, -inside_C.to(working).unsqueeze(1))
        exponentials_CV.masked_fill_(~trained_C.unsqueeze(1), 0.0)
        if scales_C1 is not None:
            exponentials_CV *= scales_C1
        if not in_place:
            logits_CV.copy_(exponentials_CV)
    return torch.where(trained_C, losses_C, 0.0)
