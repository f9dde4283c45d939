"""Layers divided over ranks: parts, and the bytes that a rank copies together. Training with them: test_replicas."""

from __future__ import annotations

import pytest
import torch

from cohort.models.streaming.layer_streaming import ALIGNMENT
from cohort.parallel.peer_source import PeerSource, shard_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(("num_ranks", "num_bytes"), [(1, 700), (2, 4 * ALIGNMENT), (3, 5000), (4, 300)])
def test_every_rank_copies_whole_layers_together(num_ranks: int, num_bytes: int) -> None:
    layers = [torch.randint(0, 255, (num_bytes,), dtype=torch.uint8) for _ in range(3)]
    sources = [PeerSource(CPU, rank=rank, num_ranks=num_ranks, num_layers=3) for rank in range(num_ranks)]
    for source in sources:
        for place, layer in enumerate(layers):
            source.keep(place, layer)
    handles = [source.handle for source in sources]
    assert {handle.num_bytes for handle in handles} == {3 * shard_bytes(num_bytes, num_ranks=num_ranks)}
    for source in sources:
        source.connect(handles)
        buffer = torch.zeros(num_bytes, dtype=torch.uint8)
        for place in (2, 0, 1):
            source.fetch(place, buffer).wait()
            assert torch.equal(buffer, layers[place])


def test_a_rank_without_peers_has_its_own_part() -> None:
    source = PeerSource(CPU, rank=1, num_ranks=2, num_layers=1)
    layer = torch.ones(4 * ALIGNMENT, dtype=torch.uint8)
    source.keep(0, layer)
    buffer = torch.zeros_like(layer)
    source.fetch(0, buffer).wait()
    assert buffer.sum() == 2 * ALIGNMENT
