"""Layers divided over ranks: parts, and the bytes that a rank copies together. Training with them: test_replicas."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection

import pytest
import torch
import torch.multiprocessing as mp

from cohort.models.streaming.layer_streaming import ALIGNMENT
from cohort.ranks.peer_source import PeerSource, shard_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(("num_ranks", "num_bytes"), [(1, 700), (2, 4 * ALIGNMENT), (3, 5000), (4, 300)])
def test_every_rank_copies_whole_layers_together(num_ranks: int, num_bytes: int) -> None:
    layers = [torch.randint(0, 255, (num_bytes,), dtype=torch.uint8) for _ in range(3)]
    sources = [PeerSource(CPU, rank=rank, num_ranks=num_ranks, num_layers=3) for rank in range(num_ranks)]
    for source in sources:
        for place, layer in enumerate(layers):
            source.keep(place, layer, starts=(0,))
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
    source.keep(0, layer, starts=(0,))
    buffer = torch.zeros_like(layer)
    source.fetch(0, buffer).wait()
    assert buffer.sum() == 2 * ALIGNMENT


def laid_out(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where tensors of these sizes begin, each at a multiple of the alignment, and the bytes of all."""
    starts, total = [], 0
    for num_bytes in sizes:
        starts.append(total)
        total += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return starts, total


# of two ranks, parts are whole tensors that differ by a tenth; of three, equal parts cut the largest
UNEVEN = [11 * ALIGNMENT, 6 * ALIGNMENT, 2 * ALIGNMENT + 8, 100]


@pytest.mark.parametrize(
    ("num_ranks", "num_places", "in_place"), [(1, 3, [4, 4, 4]), (2, 3, [1, 3, 1]), (3, 2, [0, 0])]
)
def test_what_is_read_where_it_is_kept_is_not_copied(num_ranks: int, num_places: int, in_place: list[int]) -> None:
    starts, total = laid_out(UNEVEN)
    layers = [torch.randint(1, 255, (total,), dtype=torch.uint8) for _ in range(num_places)]
    sources = [PeerSource(CPU, rank=rank, num_ranks=num_ranks, num_layers=num_places) for rank in range(num_ranks)]
    for source in sources:
        for place, layer in enumerate(layers):
            source.keep(place, layer, starts=starts)
    handles = [source.handle for source in sources]
    counts = []
    for source in sources:
        source.connect(handles)
        for place, layer in enumerate(layers):
            buffer = torch.zeros(total, dtype=torch.uint8)
            found = [source.in_place(place, start, size) for start, size in zip(starts, UNEVEN, strict=True)]
            source.fetch(place, buffer).wait()
            for start, size, kept in zip(starts, UNEVEN, found, strict=True):
                own = buffer[start : start + size] if kept is None else kept
                assert torch.equal(own, layer[start : start + size])
                assert kept is None or not buffer[start : start + size].any()
            counts.append(sum(kept is not None for kept in found))
    assert counts[:num_places] == in_place


def test_ranks_keep_as_much_as_each_other_though_parts_of_whole_tensors_differ() -> None:
    starts, total = laid_out(UNEVEN)
    sources = [PeerSource(CPU, rank=rank, num_ranks=2, num_layers=4) for rank in range(2)]
    for source in sources:
        for place in range(4):
            source.keep(place, torch.zeros(total, dtype=torch.uint8), starts=starts)
    assert [source.handle.num_bytes for source in sources] == [2 * total, 2 * total]


PULLED_BYTES = (1 << 22) + 3 * ALIGNMENT


def pulled_layers(gpu: int) -> list[torch.Tensor]:
    """Return the same layers on every GPU."""
    counted = torch.arange(PULLED_BYTES, device=torch.device("cuda", gpu))
    return [(counted * (place + 3) % 251).to(torch.uint8) for place in range(3)]


def meet(end: Connection, *, rank: int, gpu: int) -> None:
    """Keep a rank's parts, pull the other's, launched and recorded; send what was not right."""
    torch.cuda.set_device(gpu)
    device, layers = torch.device("cuda"), pulled_layers(gpu)
    wrong: list[str] = []
    source = PeerSource(device, rank=rank, num_ranks=2, num_layers=3)
    for place, layer in enumerate(layers):
        # two tensors of nearly one size: the ranks have them in turn
        source.keep(place, layer, starts=(0, 1 << 21))
    own = source.handle
    end.send(own)
    wrong += source.connect([own, end.recv()] if rank == 0 else [end.recv(), own])
    buffer = torch.zeros_like(layers[0])
    for place in (2, 0, 1):
        source.fetch(place, buffer).wait()
        if not torch.equal(buffer, layers[place]):
            wrong.append(f"layer {place}")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        source.fetch(0, buffer).wait()
        first = buffer.long().sum()
        source.fetch(2, buffer).wait()
    for replay in range(3):
        buffer.zero_()
        first.zero_()
        graph.replay()
        if not torch.equal(buffer, layers[2]) or first != layers[0].long().sum():
            wrong.append(f"replay {replay}")
    torch.cuda.synchronize()
    end.send(wrong)
    # memory stays until both have read it
    end.recv()
    source.close()


@pytest.mark.gpu
@pytest.mark.parametrize("other", [0, 1])
def test_two_processes_pull_each_others_parts_and_record_it_in_a_graph(other: int) -> None:
    if torch.cuda.device_count() <= other:
        pytest.skip("needs two GPUs")
    context = mp.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    ranks = [
        context.Process(target=meet, args=(ends[rank][1],), kwargs={"rank": rank, "gpu": rank * other})
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    pipes = [ours for ours, _ in ends]
    try:
        handles = [pipe.recv() for pipe in pipes]
        for pipe, handle in zip(pipes, reversed(handles), strict=True):
            pipe.send(handle)
        assert [pipe.recv() for pipe in pipes] == [[], []]
        for pipe in pipes:
            pipe.send("read")
    finally:
        for rank in ranks:
            rank.join(timeout=120)
            rank.kill()
