"""The weights that a trial starts with, drawn from its seed and the same in every pack."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.staging import pinned
from cohort.models.decoder import Decoder

__all__ = ["fresh_weights"]


def fresh_weights(bank: AdapterBank, decoder: Decoder) -> Callable[[AdapterSpec, int], Tensor]:
    """Return what makes the initial weights of an adapter [its rank rows, D] from its seed, on the host.

    It keeps neither ``bank`` nor drawn weights of more than a few adapters.
    """
    layout, dtype, on_gpu = bank.layout, bank.weights_RD.dtype, bank.weights_RD.is_cuda

    # trials of a sweep mostly share their seed: the weights of a few ranks serve all of them
    @functools.lru_cache(maxsize=4)
    def draw(spec: AdapterSpec, seed: int) -> Tensor:
        weights_rD = initial_weights(layout, spec, seed=seed, dtype=dtype, weight_of=decoder.weight_of)
        # pinned: the copy to the bank does not wait for the device
        return pinned(weights_rD) if on_gpu else weights_rD

    def fresh(spec: AdapterSpec, seed: int) -> Tensor:
        # trials that differ in nothing that the weights depend on share them
        spec = replace(spec, lora_dropout=0.0)
        if not spec.has_frozen_rows:
            spec = replace(spec, lora_alpha=1.0, alpha_pattern=(), use_rslora=False)
        return draw(spec, 0 if spec.init_lora_weights in ("pissa", "olora") else seed)

    return fresh
