"""Every trial with its own optimizer, in one bank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank, Moment
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.step_samples import Resident

__all__ = ["ByTrial"]


class ByTrial(Optimizer):
    """Steps each trial with the optimizer that its spec names; the bank keeps the moments of all of them."""

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = dict(optimizers)
        found = {moment.name: moment for optimizer in optimizers.values() for moment in optimizer.moments}
        self._moments = tuple(found.values())

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for optimizer in self._optimizers.values() for key in optimizer.reads))

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self._moments

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        names = [resident.spec.optim for resident in residents]
        if len(set(names)) == 1:
            return self._optimizers[names[0]].update(bank, residents)
        norms = torch.zeros(len(residents), dtype=bank.weights_RD.dtype, device=bank.weights_RD.device)
        for name in dict.fromkeys(names):
            places = [place for place, own in enumerate(names) if own == name]
            own_norms = self._optimizers[name].update(bank, [residents[place] for place in places])
            for place, norm in zip(places, own_norms, strict=True):
                norms[place] = norm
        return norms
