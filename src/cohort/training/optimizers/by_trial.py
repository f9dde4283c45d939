"""Every trial with its own optimizer, in one bank: it has the moments of those that its task may ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.training.optimizers.declaration import OPTIMIZER_DECLARATIONS
from cohort.training.optimizers.optimizer import Optimizer
from cohort.training.step_samples import Resident

__all__ = ["DEFAULT_OPTIMIZER", "OPTIMIZERS", "ByTrial", "optimizer_for"]


class ByTrial(Optimizer):
    """Steps each trial with the optimizer that its spec names; the bank keeps the moments of all of them."""

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = dict(optimizers)
        found = {moment.name: moment for optimizer in optimizers.values() for moment in optimizer.moments}
        self._moments = tuple(found.values())

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


OPTIMIZERS: dict[str, Optimizer] = {
    entry.name: OPTIMIZER_DECLARATIONS.load(entry.name) for entry in OPTIMIZER_DECLARATIONS.built_in()
}
"""Cohort's own optimizers by name."""

# their moments are AdamW's, so a bank, a state and a checkpoint are the same for all of them
_SHARING = {
    entry.name: OPTIMIZERS[entry.name] for entry in OPTIMIZER_DECLARATIONS.built_in() if not entry.has_own_states
}
DEFAULT_OPTIMIZER: Optimizer = ByTrial(_SHARING)


def optimizer_for(names: Collection[str]) -> Optimizer:
    """Return what steps trials with the optimizers ``names``; a bank keeps no other moments than theirs.

    Raises:
        InputError: an optimizer of another package cannot be used.
    """
    if set(names) <= _SHARING.keys():
        return DEFAULT_OPTIMIZER
    return ByTrial({name: OPTIMIZERS.get(name) or OPTIMIZER_DECLARATIONS.load(name) for name in sorted(names)})
