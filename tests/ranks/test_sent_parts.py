"""Parts that a peer sends: the right bytes in any order of waiting, refusals, and a peer that is gone."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing import AuthenticationError

import pytest
import torch

from cohort.core.errors import RankLostError
from cohort.models.streaming.layer_streaming import ALIGNMENT
from cohort.ranks import peer_source
from cohort.ranks.peer_source import PeerSource
from cohort.ranks.sent_parts import PartReceiver, PartSender

PARTS = [*torch.arange(4 * 6, dtype=torch.uint8).view(4, 6)]


def test_parts_arrive_where_they_were_asked_for_also_when_some_are_never_waited_for() -> None:
    sender = PartSender(PARTS)
    receiver = PartReceiver(sender.address, rank=1)
    first, second = torch.zeros(6, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)
    receiver.fetch(0, first)
    asked = receiver.fetch(3, second)
    # into the buffer of the first, which nobody waited for
    again = receiver.fetch(2, first)
    again.wait()
    asked.wait()
    again.wait()
    assert torch.equal(first, PARTS[2])
    # the last part of a layer may be longer than what the layer has left
    assert torch.equal(second, PARTS[3][:4])
    sender.close()


def test_a_stranger_gets_nothing_and_does_not_keep_peers_out() -> None:
    sender = PartSender(PARTS)
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        PartReceiver(replace(sender.address, key=b"another"), rank=1)
    buffer = torch.zeros(6, dtype=torch.uint8)
    PartReceiver(sender.address, rank=1).fetch(1, buffer).wait()
    assert torch.equal(buffer, PARTS[1])
    sender.close()


def test_a_peer_that_is_gone_is_a_lost_rank() -> None:
    sender = PartSender(PARTS)
    receiver = PartReceiver(sender.address, rank=3)
    receiver._connection.close()
    with pytest.raises(RankLostError, match="rank 3 no longer sends its parts"):
        receiver.fetch(0, torch.zeros(6, dtype=torch.uint8))
    sender.close()


def test_a_rank_that_cannot_open_its_peers_memory_is_sent_the_parts_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = [torch.randint(0, 255, (3 * ALIGNMENT + 40,), dtype=torch.uint8) for _ in range(3)]
    sources = [PeerSource(torch.device("cpu"), rank=rank, num_ranks=3, num_layers=3) for rank in range(3)]
    for source in sources:
        for place, layer in enumerate(layers):
            source.keep(place, layer, starts=(0,))

    def refuse(handle: object, **_: object) -> torch.Tensor:
        raise PermissionError("not permitted")

    handles = [source.handle for source in sources]
    monkeypatch.setattr(peer_source, "open_bytes", refuse)
    notes = sources[1].connect(handles)
    assert [note.partition(",")[0] for note in notes] == [
        f"warning: rank 1 cannot read the memory of rank {rank} (not permitted)" for rank in (0, 2)
    ]
    buffers = [torch.zeros_like(layers[0]) for _ in range(2)]
    ahead = [sources[1].fetch(place, buffers[place]) for place in (0, 1)]
    for place in (0, 1):
        ahead[place].wait()
        assert torch.equal(buffers[place], layers[place])
    sources[1].fetch(2, buffers[0]).wait()
    assert torch.equal(buffers[0], layers[2])
    # without a sender there is no way, and that is an error
    with pytest.raises(PermissionError):
        sources[2].connect([replace(handle, sender=None) for handle in handles])
