"""Stages in processes of their own, through torch.distributed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from cohort.ranks.pipeline.stage_links import DistributedLinks, _tag
from cohort.scheduling.pipelines.pipeline_schedule import Direction


def test_every_message_of_a_window_has_a_tag_of_its_own() -> None:
    numbers = [*range(20), *(-1 - number for number in range(20))]
    tags = [_tag(number, direction) for number in numbers for direction in Direction]
    assert len(set(tags)) == len(tags)
    assert min(tags) >= 0


def _stage(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    links = DistributedLinks(stage=rank, num_stages=2, device=torch.device("cpu"))
    # both send before either receives: sends do not wait
    for number in range(3):
        direction = Direction.FORWARD if rank == 0 else Direction.BACKWARD
        links.send(torch.full((4, 5), float(10 * rank + number)), to=1 - rank, number=number, direction=direction)
    other = Direction.BACKWARD if rank == 0 else Direction.FORWARD
    # in another order than they were sent
    found = [links.receive(torch.empty(4, 5), sender=1 - rank, number=number, direction=other) for number in (2, 0, 1)]
    assert [float(each[0, 0]) for each in found] == [10 * (1 - rank) + number for number in (2, 0, 1)]
    links.flush()
    # more than may be under way: a send waits until the first ones have been received
    if rank == 0:
        for number in range(40):
            links.send(torch.full((2,), float(number)), to=1, number=number, direction=Direction.FORWARD)
        links.flush()
    else:
        arrived = [
            float(links.receive(torch.empty(2), sender=0, number=number, direction=Direction.FORWARD)[0])
            for number in range(40)
        ]
        assert arrived == list(range(40))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_messages_between_processes(tmp_path: Path) -> None:
    spawn(_stage, args=(str(tmp_path),), nprocs=2, join=True)
