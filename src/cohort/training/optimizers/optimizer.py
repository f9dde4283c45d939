"""What an optimizer declares and does. The bank, checkpoints, parked states and sizes ask it for its moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cohort.adapters.adapter_state import Moment
from cohort.adapters.bank import AdapterBank
from cohort.core.errors import CohortError
from cohort.training.step_samples import Resident

__all__ = ["Optimizer", "UnfinishedUpdateError", "moment_bytes"]


class UnfinishedUpdateError(CohortError):
    """An optimizer step broke off: weights and moments of the trials that were stepping are no longer known."""


class Optimizer(Protocol):
    """Steps the trials of a bank. It has no state of its own: that is the bank's, under the names it declares."""

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What it keeps for every parameter from one step to the next."""
        ...

    def update(self, bank: AdapterBank, residents: Sequence[Resident]) -> Tensor:
        """Clip and step ``residents`` in place, each by its own settings; return norms before clipping [residents].

        Leaves the compute copy refreshed, and the gradients zero unless ``bank.writes_gradients``. Waits for nothing:
        the norms stay on the device.
        """
        ...


def moment_bytes(optimizer: Optimizer, *, width: int, weights_dtype: torch.dtype) -> int:
    """Return the bytes that ``optimizer`` keeps for a rank row of ``width`` entries."""
    return sum(moment.num_columns(width) * (moment.dtype or weights_dtype).itemsize for moment in optimizer.moments)
