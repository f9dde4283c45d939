"""Weights of adapters that begin, kept for the next: trials of a sweep share their seed as a rule."""

from __future__ import annotations

from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.training.trial import TrialSpec

__all__ = ["FreshWeights"]

# a few ranks' fresh weights serve all trials of one seed
MOST_KEPT = 4


class FreshWeights:
    """Draws the weights that trials of a bank begin with; those of one seed differ in their rank alone."""

    def __init__(self, bank: AdapterBank) -> None:
        """Begin with none, for adapters of ``bank``."""
        self._bank = bank
        self._kept: dict[tuple[int, int], Tensor] = {}

    def of(self, spec: TrialSpec) -> Tensor:
        """Return the fresh weights [r, D] of a trial, on the host, ready to be copied to the bank."""
        key, weights_RD = (spec.adapter.r, spec.seed), self._bank.weights_RD
        if key not in self._kept:
            while len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            weights = initial_weights(self._bank.layout, r=key[0], seed=key[1], dtype=weights_RD.dtype)
            self._kept[key] = weights.pin_memory() if weights_RD.is_cuda else weights
        return self._kept[key]
