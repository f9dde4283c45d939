"""Sums in one kernel on two GPUs: those of NCCL, the same on all ranks, eager and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from cohort.ranks.tensor.one_shot_group import MOST_BYTES, OneShotGroup

pytestmark = pytest.mark.gpu


def _rank(rank: int, folder: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2, device_id=device)
    group = OneShotGroup.of(device, torch.bfloat16)
    found = []
    for count in (8, 4096, MOST_BYTES // 2, MOST_BYTES):
        x = torch.randn(count, device=device, dtype=torch.bfloat16)
        expected = x.clone()
        dist.all_reduce(expected)
        found.append((type(group).__name__, group.all_reduce(x.clone()).cpu(), expected.cpu()))
    x = torch.ones(64, device=device, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = group.all_reduce(x)
    for value in (2.0, 5.0):
        x.fill_(value)
        graph.replay()
        found.append(("graph", y.cpu(), torch.full((64,), 2 * value, dtype=torch.bfloat16)))
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_sums_equal_those_of_nccl_and_can_be_recorded(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    processes = [mp.get_context("spawn").Process(target=_rank, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for (kind, own, expected), (_, theirs, _) in zip(*ranks, strict=True):
        assert kind in ("OneShotGroup", "graph")
        # two summands: rounded once, in either order
        torch.testing.assert_close(own, expected, rtol=0, atol=0)
        assert torch.equal(own, theirs)
