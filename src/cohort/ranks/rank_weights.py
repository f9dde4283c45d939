"""Which layers of a rank's model are not resident, and where their weights are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cohort.models.streaming.host_source import host_streaming
from cohort.models.streaming.layer_streaming import LayerStreaming
from cohort.ranks.peer_source import peer_streaming

__all__ = ["ALL_RESIDENT", "RankWeights"]


@dataclass(frozen=True, kw_only=True)
class RankWeights:
    """The same on every rank.

    Attributes:
        layers: Layers that pass through buffers; none where all are resident.
        num_ranks: Ranks of the run.
        are_divided: Whether each rank keeps a part of these layers; else each keeps all of them in host memory.
    """

    layers: tuple[int, ...] = ()
    num_ranks: int = 1
    are_divided: bool = False

    def streaming(self, device: torch.device, *, rank: int) -> LayerStreaming | None:
        """Return what the loader of a rank needs; None where all layers are resident."""
        if self.are_divided:
            return peer_streaming(self.layers, device, rank=rank, num_ranks=self.num_ranks)
        return host_streaming(self.layers, device)


ALL_RESIDENT = RankWeights()
