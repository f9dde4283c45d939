"""Steps adapters whose factors are divided over ranks: norms over all of them, shared factors alike on each.

Shapes:  S trials that step · R rank rows of the bank · D columns of a local rank row
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.ranks.tensor.groups import RankGroup
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
        self._shared: dict[int, _SharedColumns] = {}

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self._inner.moments

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        rows = [bank.rank_rows(resident.slot) for resident in residents]
        shared = self._shared_columns([resident.spec.trial_id for resident in residents], bank.grads_RD.device)
        self._sum_replicated(bank, rows, shared)
        norms_S = self._norms(bank, rows, shared)
        for own, norm, resident in zip(rows, norms_S, residents, strict=True):
            if resident.spec.max_grad_norm:
                clip = torch.clamp(resident.spec.max_grad_norm / (norm + _NORM_EPS), max=1.0)
                bank.grads_RD[own].mul_(clip.to(bank.grads_RD.dtype))
        # clipped above, by norms that no rank knows alone
        unclipped = [replace(resident, spec=replace(resident.spec, max_grad_norm=0.0)) for resident in residents]
        self._inner.update(bank, unclipped)
        return norms_S.to(bank.grads_RD.dtype)

    def _shared_columns(self, trial_ids: Sequence[int], device: torch.device) -> list[_SharedColumns]:
        """Return the shared columns of trials; those that have not changed are on the device from the last step."""
        kept = {key: found for key, found in self._shared.items() if self._replicated.get(key) is found.source_D}
        for key in trial_ids:
            if key not in kept:
                mask_D = self._replicated[key]
                columns = mask_D.nonzero().squeeze(1).to(device)
                kept[key] = _SharedColumns(source_D=mask_D, mask_D=mask_D.to(device), columns=columns)
        self._shared = kept
        return [kept[key] for key in trial_ids]

    def _sum_replicated(self, bank: AdapterBank, rows: Sequence[slice], shared: Sequence[_SharedColumns]) -> None:
        # by number, not by mask: the host would have to wait for how many there are
        parts = [bank.grads_RD[own].index_select(1, each.columns) for own, each in zip(rows, shared, strict=True)]
        if self._group.size == 1 or not any(part.numel() for part in parts):
            return
        # one exchange for all trials
        summed = self._group.all_reduce(torch.cat([part.reshape(-1) for part in parts]))
        for own, each, part, found in zip(
            rows, shared, parts, summed.split([part.numel() for part in parts]), strict=True
        ):
            if part.numel():
                bank.grads_RD[own].index_copy_(1, each.columns, found.view_as(part))

    def _norms(self, bank: AdapterBank, rows: Sequence[slice], shared: Sequence[_SharedColumns]) -> Tensor:
        squares = []
        for own, each in zip(rows, shared, strict=True):
            by_column_D = bank.grads_RD[own].double().square().sum(dim=0)
            # what all ranks hold counts once
            counted_D = by_column_D if self._group.rank == 0 else by_column_D.masked_fill(each.mask_D, 0.0)
            squares.append(counted_D.sum())
        return self._group.all_reduce(torch.stack(squares)).sqrt()


@dataclass(frozen=True, kw_only=True)
class _SharedColumns:
    """The columns of a trial that several ranks hold.

    Attributes:
        source_D: The mask that was given, on the host.
        mask_D, columns: It and the numbers of its columns, where the gradients are.
    """

    source_D: Tensor
    mask_D: Tensor
    columns: Tensor
