"""A rank other than rank 0 while it serves: its shard of the model and of every adapter, and the commands it serves.

It decides nothing: slots, blocks and passes are rank 0's to choose. Banks see the same adapters come and go in the same
order on all ranks, and so have them in the same slots.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cohort.adapters.bank import AdapterBank, AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import pinned
from cohort.models.decoder import Decoder
from cohort.serving.arriving_rows import ArrivingRows
from cohort.serving.pass_computer import PassComputer
from cohort.serving.pass_record import PassRecord

__all__ = [
    "Announce",
    "Command",
    "Fetch",
    "Forget",
    "Insert",
    "Keep",
    "OpenCache",
    "Remove",
    "ServingRank",
]


@dataclass
class _Kept:
    spec: AdapterSpec
    rows_rD: Tensor
    arriving: ArrivingRows | None = None


class ServingRank:
    """What a rank has."""

    def __init__(self, decoder: Decoder, layout: AdapterLayout, *, num_slots: int, num_rank_rows: int) -> None:
        """Allocate the bank of the rank's shards, whose linears are ``layout``."""
        self._decoder, self.num_slots = decoder, num_slots
        self._bank = AdapterBank(
            layout,
            num_slots=num_slots,
            num_rank_rows=num_rank_rows,
            device=decoder.device,
            dtype=decoder.dtype,
            trains=False,
        )
        self._kept: dict[int, _Kept] = {}
        self._computer: PassComputer | None = None
        self._on_gpu = decoder.device.type == "cuda"
        self._copies = torch.cuda.Stream(decoder.device) if self._on_gpu else None

    def context(self, segments: SegmentTable) -> LoraContext | None:
        """Return what the linears need for a pass, as rank 0's pool does."""
        return self._bank.context(segments) if segments.num_adapter_rows else None

    def keep(self, number: int, spec: AdapterSpec, rows_rD: Tensor) -> None:
        rows_rD = rows_rD.to(self._bank.weights_RD.dtype)
        self._kept[number] = _Kept(spec, pinned(rows_rD) if self._on_gpu else rows_rD)

    def forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._kept[number]

    def fetch(self, number: int) -> None:
        kept = self._kept[number]
        if self._copies is not None:
            kept.arriving = ArrivingRows(kept.rows_rD, like=self._bank.weights_RD, stream=self._copies)

    def insert(self, number: int) -> None:
        kept = self._kept[number]
        rows_rD = kept.rows_rD
        if kept.arriving is not None:
            kept.arriving.let_stream_wait()
            rows_rD, kept.arriving = kept.arriving.rows_rD, None
        self._bank.insert(kept.spec, AdapterState(weights=rows_rD))

    def remove(self, slot: int) -> None:
        self._bank.remove(slot)

    def open_cache(self, *, num_blocks: int, max_model_len: int, records_graphs: bool) -> None:
        # the old one goes before the new one comes
        self._computer = None
        self._computer = PassComputer(
            self._decoder,
            adapters=self,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            records_graphs=records_graphs,
        )

    def compute(self, record: PassRecord) -> None:
        """Take part in a pass; rank 0 alone uses the logits."""
        assert self._computer is not None, "the engine opens the cache before it announces passes"
        self._computer.compute(record)


class Command(Protocol):
    """A command to a rank."""

    def run(self, rank: ServingRank) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Have an adapter's shard in host memory."""

    number: int
    spec: AdapterSpec
    rows_rD: Tensor

    def run(self, rank: ServingRank) -> None:
        rank.keep(self.number, self.spec, self.rows_rD)


@dataclass(frozen=True, kw_only=True)
class Forget:
    """Free shards in host memory."""

    numbers: Sequence[int]

    def run(self, rank: ServingRank) -> None:
        rank.forget(self.numbers)


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Let a shard set out for the device."""

    number: int

    def run(self, rank: ServingRank) -> None:
        rank.fetch(self.number)


@dataclass(frozen=True, kw_only=True)
class Insert:
    """Put a shard into the bank."""

    number: int

    def run(self, rank: ServingRank) -> None:
        rank.insert(self.number)


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Free a slot of the bank."""

    slot: int

    def run(self, rank: ServingRank) -> None:
        rank.remove(self.slot)


@dataclass(frozen=True, kw_only=True)
class OpenCache:
    """Allocate keys and values, in place of those that were there."""

    num_blocks: int
    max_model_len: int
    records_graphs: bool

    def run(self, rank: ServingRank) -> None:
        rank.open_cache(
            num_blocks=self.num_blocks, max_model_len=self.max_model_len, records_graphs=self.records_graphs
        )


@dataclass(frozen=True, kw_only=True)
class Announce:
    """Compute a pass."""

    record: PassRecord

    def run(self, rank: ServingRank) -> None:
        rank.compute(self.record)
