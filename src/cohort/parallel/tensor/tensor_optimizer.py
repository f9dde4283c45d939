"""Steps adapters whose factors are divided over ranks: norms over all of them, shared factors alike on each.

Shapes:  S trials that step · R rank rows of the bank · D columns of a local rank row
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank, Moment
from cohort.parallel.tensor.groups import RankGroup
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.step_samples import Resident

__all__ = ["TensorOptimizer"]

# of torch.nn.utils.clip_grad_norm_
_NORM_EPS = 1e-6


class TensorOptimizer:
    """Another optimizer's step, with what it needs of the other ranks: at most two all-reduces for all trials.

    One sums the gradients of columns that several ranks hold (:func:`~cohort.adapters.sharding.replicated_columns`),
    where some trial has any; one the squares of the gradients, for norms and clipping.
    """

    def __init__(self, inner: Optimizer, group: RankGroup, *, replicated: Mapping[int, Tensor]) -> None:
        """Wrap ``inner``.

        Args:
            replicated: By trial id, bool [D]: its columns that several ranks hold. Trials may be added later.
        """
        self._inner, self._group, self._replicated = inner, group, replicated

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self._inner.moments

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        rows = [bank.rank_rows(resident.slot) for resident in residents]
        masks = [self._replicated[resident.spec.trial_id].to(bank.grads_RD.device) for resident in residents]
        self._sum_replicated(bank, rows, masks)
        norms_S = self._norms(bank, rows, masks)
        for own, norm, resident in zip(rows, norms_S, residents, strict=True):
            if resident.spec.max_grad_norm:
                clip = torch.clamp(resident.spec.max_grad_norm / (norm + _NORM_EPS), max=1.0)
                bank.grads_RD[own].mul_(clip.to(bank.grads_RD.dtype))
        # clipped above, by norms that no rank knows alone
        unclipped = [replace(resident, spec=replace(resident.spec, max_grad_norm=0.0)) for resident in residents]
        self._inner.update(bank, unclipped)
        return norms_S.to(bank.grads_RD.dtype)

    def _sum_replicated(self, bank: AdapterBank, rows: Sequence[slice], masks: Sequence[Tensor]) -> None:
        parts = [bank.grads_RD[own][:, mask] for own, mask in zip(rows, masks, strict=True)]
        if self._group.size == 1 or not any(part.numel() for part in parts):
            return
        # one exchange for all trials
        summed = self._group.all_reduce(torch.cat([part.reshape(-1) for part in parts]))
        for own, mask, part, found in zip(
            rows, masks, parts, summed.split([part.numel() for part in parts]), strict=True
        ):
            if part.numel():
                gradients_rD = bank.grads_RD[own]
                gradients_rD[:, mask] = found.view_as(part)

    def _norms(self, bank: AdapterBank, rows: Sequence[slice], masks: Sequence[Tensor]) -> Tensor:
        squares = []
        for own, mask in zip(rows, masks, strict=True):
            by_column_D = bank.grads_RD[own].double().square().sum(dim=0)
            # what all ranks hold counts once
            counted_D = by_column_D if self._group.rank == 0 else by_column_D.masked_fill(mask, 0.0)
            squares.append(counted_D.sum())
        return self._group.all_reduce(torch.stack(squares)).sqrt()
