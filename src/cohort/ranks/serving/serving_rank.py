"""A rank other than rank 0 while it serves: its shard of the model and of every adapter, and the calls it carries out.

It decides nothing: slots, blocks and passes are rank 0's to choose. Banks see the same adapters come and go in the same
order on all ranks, and so have them in the same slots.

Shapes:  r rank · D entries of a rank row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.linear import LoraContext
from cohort.adapters.sharding import local_layout
from cohort.adapters.spec import AdapterSpec
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import pinned
from cohort.models.decoder import Decoder
from cohort.ranks.calls import Standing, verb
from cohort.ranks.group_meeting import join_group
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.tensor.groups import DistributedGroup
from cohort.ranks.tensor.one_shot_group import OneShotGroup
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.serving.arriving_rows import ArrivingRows
from cohort.serving.pass_computer import PassComputer
from cohort.serving.pass_record import PassRecord

__all__ = ["ServingRank", "ServingSetup"]

_PATIENCE = timedelta(minutes=5)


@dataclass
class _Kept:
    spec: AdapterSpec
    rows_rD: Tensor
    arriving: ArrivingRows | None = None


class ServingRank:
    """What a rank has. Apart from :meth:`load`, nothing is answered: an error ends the rank."""

    def __init__(
        self, load_shard: Callable[[], Decoder], *, rank: int, size: int, num_slots: int, num_rank_rows: int
    ) -> None:
        """Begin without a model.

        Args:
            load_shard: Meets the other ranks and loads this one's shard.
        """
        self._load_shard, self._rank, self._size = load_shard, rank, size
        self.num_slots, self._num_rank_rows = num_slots, num_rank_rows
        self._kept: dict[int, _Kept] = {}
        self._computer: PassComputer | None = None

    @verb
    def load(self, layout: AdapterLayout) -> None:
        """Load the rank's shard and allocate its bank.

        Args:
            layout: The linears of the whole model.
        """
        decoder = self._decoder = self._load_shard()
        self._bank = AdapterBank(
            local_layout(layout, rank=self._rank, size=self._size),
            num_slots=self.num_slots,
            num_rank_rows=self._num_rank_rows,
            device=decoder.device,
            dtype=decoder.dtype,
            trains=False,
        )
        self._on_gpu = decoder.device.type == "cuda"
        self._copies = torch.cuda.Stream(decoder.device) if self._on_gpu else None

    def standing(self) -> Standing:
        return Standing()

    def make_room(self) -> bool:
        return False

    def context(self, segments: SegmentTable) -> LoraContext | None:
        """Return what the linears need for a pass, as rank 0's pool does."""
        return self._bank.context(segments) if segments.num_adapter_rows else None

    @verb
    def keep(self, number: int, spec: AdapterSpec, rows_rD: Tensor) -> None:
        """Have an adapter's shard in host memory."""
        rows_rD = rows_rD.to(self._bank.weights_RD.dtype)
        self._kept[number] = _Kept(spec, pinned(rows_rD) if self._on_gpu else rows_rD)

    @verb
    def forget(self, numbers: Sequence[int]) -> None:
        """Free shards in host memory."""
        for number in numbers:
            del self._kept[number]

    @verb
    def fetch(self, number: int) -> None:
        """Let a shard set out for the device."""
        kept = self._kept[number]
        if self._copies is not None:
            kept.arriving = ArrivingRows(kept.rows_rD, like=self._bank.weights_RD, stream=self._copies)

    @verb
    def insert(self, number: int) -> None:
        """Put a shard into the bank."""
        kept = self._kept[number]
        rows_rD = kept.rows_rD
        if kept.arriving is not None:
            kept.arriving.let_stream_wait()
            rows_rD, kept.arriving = kept.arriving.rows_rD, None
        self._bank.insert(kept.spec, AdapterState(weights=rows_rD))

    @verb
    def remove(self, slot: int) -> None:
        """Free a slot of the bank."""
        self._bank.remove(slot)

    @verb
    def open_cache(self, *, num_blocks: int, max_model_len: int, records_graphs: bool) -> None:
        """Allocate keys and values, in place of those that were there."""
        # the old one goes before the new one comes
        self._computer = None
        self._computer = PassComputer(
            self._decoder,
            adapters=self,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            records_graphs=records_graphs,
        )

    @verb
    def compute(self, record: PassRecord) -> None:
        """Take part in a pass; rank 0 alone uses the logits."""
        assert self._computer is not None, "the engine opens the cache before it announces passes"
        self._computer.compute(record)


@dataclass(frozen=True, kw_only=True)
class ServingSetup(RankSetup):
    """Everything a rank needs to serve; rank 0 loads its own shard with it.

    Attributes:
        size: How many ranks there are.
        num_slots, num_rank_rows: Of the bank.
    """

    size: int
    num_slots: int
    num_rank_rows: int

    def build(self) -> ServingRank:
        """Return a rank without a shard: its answer says that it lives and will come to the meeting."""
        return ServingRank(
            self.load_shard, rank=self.rank, size=self.size, num_slots=self.num_slots, num_rank_rows=self.num_rank_rows
        )

    def load_shard(self) -> Decoder:
        """Meet the other ranks, which wait for this one, and load its shard.

        On GPUs that see each other, small tensors are summed in one kernel.
        """
        device, dtype = self.torch_device, getattr(torch, self.dtype)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        join_group(self.rendezvous, rank=self.rank, size=self.size, device=device, patience=_PATIENCE)
        group = OneShotGroup.of(device, dtype) if device.type == "cuda" else DistributedGroup()
        return load_tensor_decoder(self.model_directory, group, dtype=dtype, device=device)
