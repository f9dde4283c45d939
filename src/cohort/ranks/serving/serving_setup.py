"""What a rank that serves is sent first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch

from cohort.models.decoder import Decoder
from cohort.ranks.group_meeting import join_group
from cohort.ranks.rank_setup import RankSetup
from cohort.ranks.serving.serving_rank import ServingRank
from cohort.ranks.tensor.groups import DistributedGroup
from cohort.ranks.tensor.one_shot_group import OneShotGroup
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder

__all__ = ["ServingSetup"]

_PATIENCE = timedelta(minutes=5)


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
