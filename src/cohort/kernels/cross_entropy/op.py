"""The public op: per-token losses straight from hidden states, loss head and cross-entropy as one autograd node.

A token's loss depends on its own hidden row alone, so its whole Jacobian is one row of width D. That row is computed
while the chunk's logits are at hand, and backward only multiplies it by the weight that the objective gave the token:
exact for any per-token weights, known beforehand (SFT) or not (DPO), with two products and one set of logits in all.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.packed_linear.frozen_product import FrozenProduct

__all__ = ["PricingHead", "can_price", "linear_cross_entropy", "logits_bytes", "price_rows", "weighted_gradient"]

# Products of fewer rows, or of other row counts, take other BLAS kernels whose last bits differ.
LEAST_ROWS = 32
ROW_MULTIPLE = 16

# Bytes of one chunk's logits. GPU: 4096 rows of 128k bf16 entries, enough for the products to run at full rate.
# CPU: a chunk that stays near the caches.
GPU_CHUNK_BYTES = 1 << 30
CPU_CHUNK_BYTES = 1 << 26


class PricingHead(FrozenProduct, Protocol):
    """A head that computes the losses itself: its vocabulary is divided, and no place has whole rows of logits."""

    def cross_entropy(self, hidden_TD: Tensor, *, targets_T: Tensor, rows_M: Tensor, logit_cap: float | None) -> Tensor:
        """Return what :func:`linear_cross_entropy` returns."""
        ...


def can_price(head: FrozenProduct) -> TypeGuard[PricingHead]:
    return hasattr(head, "cross_entropy")


def linear_cross_entropy(
    hidden_TD: Tensor,
    *,
    head: FrozenProduct,
    targets_T: Tensor,
    trained_rows_M: Tensor | None = None,
    logit_cap: float | None = None,
    chunk_rows: int | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Return ``-log softmax(head(hidden))[target]`` per row, [T], float32 (float64 for float64 hidden states).

    Differentiable in ``hidden`` under any per-token weights the caller applies to the losses, known before or not. Only
    trained rows cost logits; these exist for one chunk of rows at a time, in forward and backward.

    Args:
        hidden_TD: Final hidden states, after the last norm.
        head: The frozen head, D in and the vocabulary out.
        targets_T: int64 labels; -100 marks an untrained row: loss 0, gradient 0. Any other label outside the vocabulary
            gives that row a NaN loss.
        trained_rows_M: int64 numbers of all rows with a label. They may name untrained rows as well, and such a row
            repeatedly (to fill a fixed size for a CUDA graph). Without it they are looked up, a wait for the device.
        logit_cap: Logits become ``cap * tanh(logit / cap)`` first, in plain torch; None leaves them.
        chunk_rows: Rows of logits at a time; None fits the logits into a fixed workspace.
        backend: Forces an implementation (see :mod:`cohort.kernels.backend`).

    Raises:
        ShapeError: widths or row counts disagree.
    """
    if hidden_TD.ndim != 2 or hidden_TD.shape[1] != head.in_features or targets_T.shape != hidden_TD.shape[:1]:
        raise ShapeError(
            f"hidden states {tuple(hidden_TD.shape)} and targets {tuple(targets_T.shape)} do not fit each other and a "
            f"head of {head.in_features} x {head.out_features}"
        )
    rows_M = (targets_T != -100).nonzero().squeeze(1) if trained_rows_M is None else trained_rows_M
    if can_price(head):
        return head.cross_entropy(hidden_TD, targets_T=targets_T, rows_M=rows_M, logit_cap=logit_cap)
    if chunk_rows is not None and chunk_rows < LEAST_ROWS:
        raise ShapeError(f"chunk_rows is {chunk_rows}; at least {LEAST_ROWS} rows go through the head at a time")
    result: Tensor = _LinearCrossEntropyFunction.apply(
        hidden_TD,
        head,
        targets_T,
        rows_M,
        logit_cap,
        chunk_rows,
        torch.is_grad_enabled() and hidden_TD.requires_grad,
        choose_backend(hidden_TD, backend=backend),
    )
    return result


@torch.no_grad()
def price_rows(
    hidden_TD: Tensor,
    *,
    head: FrozenProduct,
    targets_M: Tensor,
    rows_M: Tensor,
    logit_cap: float | None = None,
    chunk_rows: int | None = None,
    with_gradient: bool = True,
    scales_M: Tensor | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the losses [M] of some rows, and the gradient [M, D] of each row's loss ([0, D] without gradients).

    What :func:`linear_cross_entropy` is made of, for rows whose losses and gradients are computed separately. A row's
    bits do not depend on the others that are priced with it, as far as those of the head's products do not.

    Args:
        targets_M: Of each of the rows.
        rows_M: int64 numbers of rows of ``hidden_TD``.
        scales_M: What the logits of each row are multiplied by, behind the cap and in the precision of the losses.
    """
    if chunk_rows is None:
        chunk_rows = default_chunk_rows(
            rows_M.shape[0],
            row_bytes=logits_row_bytes(head.out_features, hidden_TD.dtype, is_capped=logit_cap is not None),
            on_gpu=hidden_TD.is_cuda,
        )
    kernels = implementation("cross_entropy", choose_backend(hidden_TD, backend=backend))
    num_priced, width = rows_M.shape[0], hidden_TD.shape[1]
    working = torch.promote_types(hidden_TD.dtype, torch.float32)
    losses_M = torch.empty(num_priced, dtype=working, device=hidden_TD.device)
    jacobian_MD = hidden_TD.new_empty(num_priced if with_gradient else 0, width)
    for start in range(0, num_priced, chunk_rows):
        stop = min(start + chunk_rows, num_priced)
        count = stop - start
        _, targets_C, logits_CV, tanh_CV = head_logits(
            hidden_TD, head=head, rows_C=rows_M[start:stop], targets_C=targets_M[start:stop], logit_cap=logit_cap
        )
        scales_C = None
        if scales_M is not None:
            scales_C = torch.nn.functional.pad(scales_M[start:stop], (0, len(targets_C) - count), value=1.0)
        losses_C = kernels.cross_entropy_rows(
            logits_CV, targets_C=targets_C, with_gradient=with_gradient, scales_C=scales_C
        )
        losses_M[start:stop] = losses_C[:count]
        if with_gradient:
            if tanh_CV is not None:
                logits_CV.mul_(tanh_CV.square_().neg_().add_(1.0))
            jacobian_MD[start:stop] = head.grad_input(logits_CV)[:count]
        del logits_CV, tanh_CV  # before the next chunk's are made: one chunk of logits is the whole workspace
    return losses_M, jacobian_MD


def head_logits(
    hidden_TD: Tensor, *, head: FrozenProduct, rows_C: Tensor, targets_C: Tensor, logit_cap: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return some rows' hidden states [P, D], targets [P] and logits [P, V], and with a cap the tanh of the logits.

    P is C rounded up to what gives a row its own bits; the rows behind C are zeros without a label.
    """
    count, width = rows_C.shape[0], hidden_TD.shape[1]
    padded = max(LEAST_ROWS, -(-count // ROW_MULTIPLE) * ROW_MULTIPLE)
    chunk_PD = hidden_TD.new_zeros(padded, width) if padded > count else hidden_TD.new_empty(padded, width)
    torch.index_select(hidden_TD, 0, rows_C, out=chunk_PD[:count])
    targets_P = torch.nn.functional.pad(targets_C, (0, padded - count), value=-100)
    logits_PV = head.forward(chunk_PD)
    tanh_PV = None
    if logit_cap is not None:
        tanh_PV = logits_PV.div_(logit_cap).tanh_()
        logits_PV = tanh_PV * logit_cap
    return chunk_PD, targets_P, logits_PV, tanh_PV


def weighted_gradient(jacobian_MD: Tensor, *, rows_M: Tensor, weights_T: Tensor) -> Tensor:
    """Return the gradient [T, D] of a weighted sum of losses from :func:`price_rows`."""
    weighted_MD = (jacobian_MD * weights_T.index_select(0, rows_M).unsqueeze(1)).to(jacobian_MD.dtype)
    return jacobian_MD.new_zeros(weights_T.shape[0], jacobian_MD.shape[1]).index_copy_(0, rows_M, weighted_MD)


def logits_bytes(
    num_rows: int, *, vocabulary: int, dtype: torch.dtype, device: torch.device, is_capped: bool = False
) -> int:
    """Return the bytes of one chunk of logits when ``num_rows`` rows are trained: all that exists of them at a time.

    ``is_capped``: with a ``logit_cap``.
    """
    bytes_each = logits_row_bytes(vocabulary, dtype, is_capped=is_capped)
    chunk = min(num_rows, default_chunk_rows(num_rows, row_bytes=bytes_each, on_gpu=device.type == "cuda"))
    return max(LEAST_ROWS, -(-chunk // ROW_MULTIPLE) * ROW_MULTIPLE) * bytes_each if num_rows else 0


def logits_row_bytes(vocabulary: int, dtype: torch.dtype, *, is_capped: bool) -> int:
    # the derivative of the cap needs a second copy
    return vocabulary * dtype.itemsize * (2 if is_capped else 1)


def default_chunk_rows(num_rows: int, *, row_bytes: int, on_gpu: bool) -> int:
    """Return the rows of equal chunks that each fit the workspace, in steps that suit the products."""
    budget, multiple = (GPU_CHUNK_BYTES, 256) if on_gpu else (CPU_CHUNK_BYTES, ROW_MULTIPLE)
    most = max(LEAST_ROWS, budget // row_bytes // multiple * multiple)
    num_chunks = max(1, -(-num_rows // most))
    even = -(-num_rows // num_chunks)
    return min(most, max(LEAST_ROWS, -(-even // multiple) * multiple))


class _LinearCrossEntropyFunction(torch.autograd.Function):
    """``forward(hidden, head, targets, rows, logit_cap, chunk_rows, with_gradient, backend) -> losses``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        head: FrozenProduct,
        targets_T: Tensor,
        rows_M: Tensor,
        logit_cap: float | None,
        chunk_rows: int | None,
        with_gradient: bool,  # noqa: FBT001 - autograd passes arguments by place
        backend: Backend,
    ) -> Tensor:
        losses_M, jacobian_MD = price_rows(
            hidden_TD,
            head=head,
            targets_M=targets_T.index_select(0, rows_M),
            rows_M=rows_M,
            logit_cap=logit_cap,
            chunk_rows=chunk_rows,
            with_gradient=with_gradient,
            backend=backend,
        )
        ctx.save_for_backward(jacobian_MD, rows_M)
        return losses_M.new_zeros(hidden_TD.shape[0]).index_copy_(0, rows_M, losses_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses_T: Tensor) -> tuple[Tensor | None, ...]:
        jacobian_MD, rows_M = ctx.saved_tensors
        dhidden_TD = weighted_gradient(jacobian_MD, rows_M=rows_M, weights_T=dlosses_T)
        return dhidden_TD, None, None, None, None, None, None, None
