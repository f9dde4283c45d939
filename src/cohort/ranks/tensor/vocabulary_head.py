"""A head whose vocabulary is divided over ranks: losses without whole rows of logits, or the logits gathered.

Shapes:  T rows of the stream · M priced rows · C rows of a chunk · D hidden width · V vocabulary · v a rank's part
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cohort.kernels.packed_linear import FrozenProduct
from cohort.ranks.tensor.base_shards import vocabulary_rows
from cohort.ranks.tensor.groups import RankGroup

__all__ = ["VocabularyHead"]

# bytes of one chunk's logits on a rank
_CHUNK_BYTES = 1 << 28
_LEAST_ROWS = 32


class VocabularyHead:
    """Satisfies FrozenProduct and PricingHead over the rows of the vocabulary that this rank has.

    A pass exchanges one ``[C, 3]`` a chunk (largest logit, sum, target's logit) and, where gradients are wanted, one
    sum of the rows' gradients.
    """

    def __init__(self, part: FrozenProduct, group: RankGroup, *, vocab_size: int) -> None:
        """Wrap ``part``, the product with this rank's rows of the head."""
        self._part, self._group = part, group
        self.rows = vocabulary_rows(vocab_size, rank=group.rank, size=group.size)
        self.in_features, self.out_features = part.in_features, vocab_size
        self.dtype, self.num_bytes = part.dtype, part.num_bytes
        self._most: int = vocabulary_rows(vocab_size, rank=0, size=group.size).stop

    def forward(self, x_TK: Tensor) -> Tensor:
        """Return whole logits [T, V], gathered."""
        own_Tv = self._part.forward(x_TK)
        padded_Tv = torch.nn.functional.pad(own_Tv, (0, self._most - own_Tv.shape[1]))
        return torch.cat(self._group.all_gather(padded_Tv), dim=1)[:, : self.out_features]

    def grad_input(self, dy_TN: Tensor) -> Tensor:
        """Return dx [T, D] from the whole gradient of the logits, which all ranks have."""
        return self._group.all_reduce(self._part.grad_input(dy_TN[:, self.rows].contiguous()))

    def cross_entropy(self, hidden_TD: Tensor, *, targets_T: Tensor, rows_M: Tensor, logit_cap: float | None) -> Tensor:
        """Return the losses [T], equal on all ranks; labels outside of the vocabulary give NaN."""
        with_gradient = torch.is_grad_enabled() and hidden_TD.requires_grad
        losses_T: Tensor = _VocabularyCrossEntropy.apply(hidden_TD, self, targets_T, rows_M, logit_cap, with_gradient)
        return losses_T

    def price(
        self, hidden_CD: Tensor, targets_C: Tensor, *, logit_cap: float | None, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return losses [C] and this rank's share of their gradients [C, D]."""
        logits_Cv = self._part.forward(hidden_CD)
        working = torch.promote_types(logits_Cv.dtype, torch.float32)
        tanh_Cv = None
        wide_Cv = logits_Cv.to(working)
        if logit_cap is not None:
            tanh_Cv = (wide_Cv / logit_cap).tanh()
            wide_Cv = tanh_Cv * logit_cap
        largest_C, sums_C, wanted_C = self._statistics(wide_Cv, targets_C)
        found_KC = torch.stack(self._group.all_gather(torch.stack([largest_C, sums_C, wanted_C], dim=1)))
        largest_C = found_KC[:, :, 0].amax(dim=0)
        total_C = (found_KC[:, :, 1] * (found_KC[:, :, 0] - largest_C).exp()).sum(dim=0)
        is_known_C = (targets_C >= 0) & (targets_C < self.out_features)
        log_total_C = largest_C + total_C.log()
        losses_C = torch.where(is_known_C, log_total_C - found_KC[:, :, 2].sum(dim=0), torch.nan)
        # -100 marks rows that predict nothing
        losses_C = torch.where(targets_C == -100, 0.0, losses_C)
        if not with_gradient:
            return losses_C, None
        d_Cv = (wide_Cv - log_total_C[:, None]).exp()
        own_C, columns_C = self._own_targets(targets_C)
        if d_Cv.shape[1]:
            # not by a mask of rows, whose number the host would wait for
            places_C1 = columns_C.clamp(0, d_Cv.shape[1] - 1)[:, None]
            d_Cv.scatter_add_(1, places_C1, -own_C[:, None].to(d_Cv.dtype))
        d_Cv = d_Cv.masked_fill(~is_known_C[:, None], torch.nan).masked_fill((targets_C == -100)[:, None], 0.0)
        if tanh_Cv is not None:
            d_Cv = d_Cv * (1 - tanh_Cv.square())
        return losses_C, self._part.grad_input(d_Cv.to(logits_Cv.dtype))

    def sum_gradients(self, d_MD: Tensor) -> Tensor:
        return self._group.all_reduce(d_MD)

    @property
    def chunk_rows(self) -> int:
        """Rows of logits at a time: the same on all ranks."""
        return max(_LEAST_ROWS, _CHUNK_BYTES // (4 * max(1, self._most)) // 16 * 16)

    def _own_targets(self, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        columns_C = targets_C - self.rows.start
        return (columns_C >= 0) & (columns_C < self.rows.stop - self.rows.start), columns_C

    def _statistics(self, wide_Cv: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if wide_Cv.shape[1] == 0:
            nothing_C = wide_Cv.new_zeros(wide_Cv.shape[0])
            return nothing_C - torch.inf, nothing_C, nothing_C
        largest_C = wide_Cv.amax(dim=1)
        sums_C = (wide_Cv - largest_C[:, None]).exp().sum(dim=1)
        own_C, columns_C = self._own_targets(targets_C)
        wanted_C = wide_Cv.gather(1, columns_C.clamp(0, wide_Cv.shape[1] - 1)[:, None])[:, 0]
        return largest_C, sums_C, torch.where(own_C, wanted_C, 0.0)


class _VocabularyCrossEntropy(torch.autograd.Function):
    """``forward(hidden, head, targets, rows, logit_cap, with_gradient) -> losses``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        head: VocabularyHead,
        targets_T: Tensor,
        rows_M: Tensor,
        logit_cap: float | None,
        with_gradient: bool,  # noqa: FBT001 - autograd passes arguments by place
    ) -> Tensor:
        losses, gradients = [], []
        # splitting nothing gives one empty part
        for rows_C in rows_M.split(head.chunk_rows) if rows_M.shape[0] else ():
            count = rows_C.shape[0]
            # products of fewer rows take other paths of a BLAS
            padding = max(0, _LEAST_ROWS - count)
            chunk_CD = torch.nn.functional.pad(hidden_TD.index_select(0, rows_C), (0, 0, 0, padding))
            targets_C = torch.nn.functional.pad(targets_T.index_select(0, rows_C), (0, padding), value=-100)
            losses_C, d_CD = head.price(chunk_CD, targets_C, logit_cap=logit_cap, with_gradient=with_gradient)
            losses.append(losses_C[:count])
            if d_CD is not None:
                gradients.append(d_CD[:count])
        working = torch.promote_types(hidden_TD.dtype, torch.float32)
        losses_M = torch.cat(losses) if losses else hidden_TD.new_zeros(0, dtype=working)
        jacobian_MD = (
            head.sum_gradients(torch.cat(gradients)) if gradients else hidden_TD.new_zeros(0, hidden_TD.shape[1])
        )
        ctx.save_for_backward(jacobian_MD, rows_M)
        ctx.num_rows = hidden_TD.shape[0]
        return losses_M.new_zeros(hidden_TD.shape[0]).index_copy_(0, rows_M, losses_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses_T: Tensor) -> tuple[Tensor | None, ...]:
        jacobian_MD, rows_M = ctx.saved_tensors
        weighted_MD = (jacobian_MD * dlosses_T.index_select(0, rows_M).unsqueeze(1)).to(jacobian_MD.dtype)
        dhidden_TD = jacobian_MD.new_zeros(ctx.num_rows, jacobian_MD.shape[1]).index_copy_(0, rows_M, weighted_MD)
        return dhidden_TD, None, None, None, None, None
