"""Loss head and cross-entropy as one autograd node.

A token's loss depends on its own hidden row alone, so its whole Jacobian is one row of width D. That row is computed
while the chunk's logits are at hand, and backward only multiplies it by the weight that the objective gave the token:
exact for any per-token weights, known beforehand (SFT) or not (DPO), with two products and one set of logits in all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.backend import Backend, implementation
from cohort.kernels.packed_linear.frozen_product import FrozenProduct

__all__ = ["LEAST_ROWS", "ROW_MULTIPLE", "LinearCrossEntropyFunction"]

# Products of fewer rows, or of other row counts, take other BLAS kernels whose last bits differ.
LEAST_ROWS = 32
ROW_MULTIPLE = 16


class LinearCrossEntropyFunction(torch.autograd.Function):
    """``forward(hidden, head, targets, rows, logit_cap, chunk_rows, with_gradient, backend) -> losses``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        head: FrozenProduct,
        targets_T: Tensor,
        rows_M: Tensor,
        logit_cap: float | None,
        chunk_rows: int,
        with_gradient: bool,  # noqa: FBT001 - autograd passes arguments by place
        backend: Backend,
    ) -> Tensor:
        kernels = implementation("cross_entropy", backend)
        num_rows, width = hidden_TD.shape
        num_priced = rows_M.shape[0]
        working = torch.promote_types(hidden_TD.dtype, torch.float32)
        losses_M = torch.empty(num_priced, dtype=working, device=hidden_TD.device)
        jacobian_MD = hidden_TD.new_empty(num_priced if with_gradient else 0, width)
        targets_M = targets_T.index_select(0, rows_M)
        for start in range(0, num_priced, chunk_rows):
            stop = min(start + chunk_rows, num_priced)
            count = stop - start
            padded = max(LEAST_ROWS, -(-count // ROW_MULTIPLE) * ROW_MULTIPLE)
            chunk_CD = hidden_TD.new_zeros(padded, width) if padded > count else hidden_TD.new_empty(padded, width)
            torch.index_select(hidden_TD, 0, rows_M[start:stop], out=chunk_CD[:count])
            targets_C = torch.nn.functional.pad(targets_M[start:stop], (0, padded - count), value=-100)
            logits_CV = head.forward(chunk_CD)
            tanh_CV = None
            if logit_cap is not None:
                tanh_CV = logits_CV.div_(logit_cap).tanh_()
                logits_CV = tanh_CV * logit_cap
            losses_C = kernels.cross_entropy_rows(logits_CV, targets_C=targets_C, with_gradient=with_gradient)
            losses_M[start:stop] = losses_C[:count]
            if with_gradient:
                if tanh_CV is not None:
                    logits_CV.mul_(tanh_CV.square_().neg_().add_(1.0))
                jacobian_MD[start:stop] = head.grad_input(logits_CV)[:count]
            del logits_CV, tanh_CV  # before the next chunk's are made: one chunk of logits is the whole workspace
        ctx.save_for_backward(jacobian_MD, rows_M)
        ctx.num_rows = num_rows
        return losses_M.new_zeros(num_rows).index_copy_(0, rows_M, losses_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses_T: Tensor) -> tuple[Tensor | None, ...]:
        jacobian_MD, rows_M = ctx.saved_tensors
        weighted_MD = (jacobian_MD * dlosses_T.index_select(0, rows_M).unsqueeze(1)).to(jacobian_MD.dtype)
        dhidden_TD = jacobian_MD.new_zeros(ctx.num_rows, jacobian_MD.shape[1]).index_copy_(0, rows_M, weighted_MD)
        return dhidden_TD, None, None, None, None, None, None, None
