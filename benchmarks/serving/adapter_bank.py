"""Random adapters in a bank, as an engine asks for them: what serving costs does not depend on what they say."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.serving.scheduler import Admission

__all__ = ["RandomAdapters"]


class RandomAdapters:
    """Adapters 0 to ``count - 1`` of all linears, always resident; satisfies ``EngineAdapters``."""

    def __init__(
        self, decoder: Decoder, *, count: int, r: int, scale: float = 2.0, layout: AdapterLayout | None = None
    ) -> None:
        """Fill a bank of ``count`` adapters of rank ``r``; ``layout`` in place of the decoder's linears."""
        layout = layout or AdapterLayout(decoder.linears)
        self.num_slots = count
        self.bank = AdapterBank(
            layout,
            num_slots=count,
            num_rank_rows=count * -(-r // 16) * 16,
            device=decoder.device,
            dtype=decoder.dtype,
            trains=False,
        )
        empty = torch.zeros(r, layout.width, dtype=decoder.dtype, device=decoder.device)
        for _ in range(count):
            self.bank.insert(AdapterSpec(r=r, lora_alpha=scale * r), AdapterState(weights=empty))
        self.bank.weights_RD.normal_(std=0.02)

    def acquire(self, adapter: Hashable) -> Admission | None:
        return Admission(slot=adapter if isinstance(adapter, int) else None, version=adapter)

    def waits_for_slot(self, adapter: Hashable) -> bool:
        del adapter
        return False

    def release(self, adapter: Hashable, version: Hashable) -> None:
        """They stay."""

    def take_failures(self) -> list[tuple[Hashable, str]]:
        return []

    def context(self, segments: SegmentTable) -> LoraContext | None:
        return self.bank.context(segments) if segments.num_adapter_rows else None
