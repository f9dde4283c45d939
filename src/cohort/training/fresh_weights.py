"""Initial weights of adapters, kept for the next: trials of a sweep mostly share their seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights

__all__ = ["fresh_weights"]


def fresh_weights(bank: AdapterBank) -> Callable[[int, int], Tensor]:
    """Return what draws the weights [r, D] of a rank and a seed, on the host, ready to be copied to ``bank``."""
    layout, dtype, on_gpu = bank.layout, bank.weights_RD.dtype, bank.weights_RD.is_cuda

    # the weights of a few ranks serve all trials of one seed
    @lru_cache(maxsize=4)
    def draw(r: int, seed: int) -> Tensor:
        weights_rD = initial_weights(layout, r=r, seed=seed, dtype=dtype)
        return weights_rD.pin_memory() if on_gpu else weights_rD

    return draw
