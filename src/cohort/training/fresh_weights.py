"""The weights that a trial starts with, drawn from its seed or those of an adapter: the same in every pack."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.pinned_pages import PinnedPages
from cohort.kernels.staging import pinned
from cohort.models.decoder import Decoder

__all__ = ["FreshWeights"]

# trials of a sweep mostly share their seed: the weights of a few ranks serve all of them
MOST_KEPT = 4

_Key = tuple[AdapterSpec, int]


class FreshWeights:
    """Draws the initial weights of adapters on the host, and keeps those of the last few."""

    def __init__(self, bank: AdapterBank, decoder: Decoder) -> None:
        """Draw for ``bank``, which is not kept."""
        self._layout, self._dtype, self._device = bank.layout, bank.weights_RD.dtype, bank.weights_RD.device
        self._decoder = decoder
        self._pages = PinnedPages()
        self._kept: OrderedDict[_Key, Tensor | Future[Tensor]] = OrderedDict()

    def of(self, spec: AdapterSpec, seed: int) -> Tensor:
        """Return the initial weights of an adapter [its rank rows, D]; not to be written to.

        Raises:
            InputError: the adapter that they are read from is no longer there as it was.
        """
        key = _key(spec, seed)
        if spec.saved is not None:
            # as large as the model's own tables: kept, they would fill the host
            return self._draw(key)
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = self._draw(key)
        elif isinstance(kept, Future):
            kept = kept.result()
        self._keep(key, kept)
        return kept

    def draw_ahead(self, wanted: Sequence[tuple[AdapterSpec, int]]) -> None:
        """Draw in a thread what will be asked for; of many only the first few.

        A draw for a large model takes a second, in which its first trials would wait.
        """
        # those that begin with the base model's weights work on the device, which has other work by then
        plain = (pair for pair in wanted if not (pair[0].has_frozen_rows or pair[0].use_dora or pair[0].saved))
        missing = [key for key in dict.fromkeys(_key(*pair) for pair in plain) if key not in self._kept]
        if not missing:
            return
        if self._device.type == "cuda":
            self._pages.keep_only(lambda: [own for kept in self._kept.values() if (own := _drawn(kept)) is not None])
        threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cohort-fresh")
        for key in missing[:MOST_KEPT]:
            self._keep(key, threads.submit(self._draw_in_place, key))
        threads.shutdown(wait=False)

    def _keep(self, key: _Key, drawn: Tensor | Future[Tensor]) -> None:
        self._kept[key] = drawn
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def _draw(self, key: _Key) -> Tensor:
        weights_rD = self._initial(*key)
        # pinned: the copy to the bank does not wait for the device
        return pinned(weights_rD) if self._device.type == "cuda" else weights_rD

    def _draw_in_place(self, key: _Key) -> Tensor:
        """Draw while others launch, whom a request for pinned memory would keep waiting."""
        weights_rD = self._initial(*key)
        if self._device.type != "cuda":
            return weights_rD
        # each thread has a current GPU of its own
        with torch.cuda.device(self._device):
            return self._pages.pin(weights_rD)

    def _initial(self, spec: AdapterSpec, seed: int) -> Tensor:
        """Return what the rank's bank has of the weights of a new adapter."""
        return initial_weights(self._layout, spec, seed=seed, dtype=self._dtype, weight_of=self._decoder.weight_of)


def _drawn(kept: Tensor | Future[Tensor]) -> Tensor | None:
    if isinstance(kept, Tensor):
        return kept
    return kept.result() if kept.done() and kept.exception() is None else None


def _key(spec: AdapterSpec, seed: int) -> _Key:
    """Return what the weights depend on: trials that differ in nothing else share them."""
    spec = replace(spec, lora_dropout=0.0)
    if not spec.has_frozen_rows:
        spec = replace(spec, lora_alpha=1.0, alpha_pattern=(), use_rslora=False)
    is_of_no_seed = spec.start is not None or spec.init_lora_weights in ("pissa", "olora")
    return spec, 0 if is_of_no_seed else seed
