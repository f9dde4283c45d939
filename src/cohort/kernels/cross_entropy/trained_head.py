"""A loss head that is trained itself: the gradient of its table, next to the losses of :func:`price_rows`.

The gradient of the logits is not kept from the forward pass, where it would be a tensor of tokens x vocabulary: the
logits are computed a second time in the backward pass, when the weight of each token's loss is known.

Shapes:  T rows of the stream · C rows of a chunk · V vocabulary · D hidden width
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.cross_entropy.op import LEAST_ROWS, default_chunk_rows, head_logits, logits_row_bytes
from cohort.kernels.row_stable_product import row_stable_product

__all__ = ["TrainedHead", "add_head_gradient"]

_PART_ROWS = 1 << 15


class TrainedHead:
    """``logits = hidden W^T`` over a table that an optimizer steps between passes.

    Satisfies :class:`cohort.kernels.packed_linear.FrozenProduct`: within a pass the table is a constant.
    """

    def __init__(self, table_VD: Tensor) -> None:
        self._table_VD = table_VD

    @property
    def in_features(self) -> int:
        return self._table_VD.shape[1]

    @property
    def out_features(self) -> int:
        return self._table_VD.shape[0]

    @property
    def num_bytes(self) -> int:
        return self._table_VD.nbytes

    @property
    def dtype(self) -> torch.dtype:
        return self._table_VD.dtype

    @torch.no_grad()
    def forward(self, x_TK: Tensor) -> Tensor:
        return row_stable_product(x_TK, self._table_VD.t())

    @torch.no_grad()
    def grad_input(self, dy_TN: Tensor) -> Tensor:
        return row_stable_product(dy_TN, self._table_VD)


@torch.no_grad()
def add_head_gradient(
    sink_VD: Tensor,
    *,
    hidden_TD: Tensor,
    head: TrainedHead,
    targets_T: Tensor,
    weights_T: Tensor,
    runs: Sequence[Tensor],
    logit_cap: float | None = None,
    backend: Backend | None = None,
) -> None:
    """Add the gradient of a weighted sum of token losses in the head's table to ``sink``, run by run.

    A run's bits depend on its own rows alone, and runs are added in their order: so no micro-batch changes a sum that
    is cut between runs.

    Args:
        sink_VD: Float32, or float64 for a float64 head.
        weights_T: What the loss of each row counts.
        runs: int64 numbers of trained rows, each run a product of its own.
    """
    kernels = implementation("cross_entropy", choose_backend(hidden_TD, backend=backend))
    bytes_each = logits_row_bytes(head.out_features, hidden_TD.dtype, is_capped=logit_cap is not None)
    for run in runs:
        chunk = default_chunk_rows(run.shape[0], row_bytes=bytes_each, on_gpu=hidden_TD.is_cuda)
        for rows_C in run.split(max(chunk, LEAST_ROWS)):
            if not rows_C.shape[0]:
                continue
            chunk_CD, targets_C, logits_CV, tanh_CV = head_logits(
                hidden_TD, head=head, rows_C=rows_C, targets_C=targets_T.index_select(0, rows_C), logit_cap=logit_cap
            )
            kernels.cross_entropy_rows(logits_CV, targets_C=targets_C, with_gradient=True)
            if tanh_CV is not None:
                logits_CV.mul_(tanh_CV.square_().neg_().add_(1.0))
            weights_C = weights_T.index_select(0, rows_C).to(logits_CV.dtype)
            # the rows behind those of the chunk have no label, and so no gradient
            logits_CV[: rows_C.shape[0]] *= weights_C.unsqueeze(1)
            _add_product(sink_VD, logits_CV, chunk_CD)


def _add_product(sink_VD: Tensor, logits_CV: Tensor, chunk_CD: Tensor) -> None:
    if sink_VD.dtype == logits_CV.dtype:
        sink_VD.addmm_(logits_CV.T, chunk_CD)
        return
    # a product in 16 bits is a tensor of its own first: of a part of the vocabulary, so that it stays small
    for part in range(0, sink_VD.shape[0], _PART_ROWS):
        sink_VD[part : part + _PART_ROWS] += logits_CV[:, part : part + _PART_ROWS].T @ chunk_CD
