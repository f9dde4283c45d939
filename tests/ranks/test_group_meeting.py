"""Ranks meet through a file on one machine, and through a port of rank 0's machine on several."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from cohort.ranks.group_meeting import Rendezvous, end_in_group, is_on_one_host, join_group, leave_group, open_store


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_what_one_rank_writes_another_reads(host: str | None) -> None:
    rendezvous = Rendezvous(host=host)
    assert is_on_one_host(rendezvous.address) == (host is None)
    first, second = (open_store(rendezvous.address, size=2, timeout=timedelta(seconds=20)) for _ in range(2))
    first.set("key", "value")
    assert second.get("key") == b"value"
    rendezvous.remove()


def test_the_file_is_removed() -> None:
    rendezvous = Rendezvous()
    folder = Path(rendezvous.address).parent
    assert folder.is_dir()
    rendezvous.remove()
    assert not folder.exists()


def test_only_a_group_of_gpus_is_left_by_the_end_of_its_process() -> None:
    end_in_group(1)
    rendezvous, patience = Rendezvous(), timedelta(seconds=20)
    join_group(rendezvous.address, rank=0, size=1, device=torch.device("cpu"), patience=patience)
    end_in_group(1)
    leave_group()
    assert not dist.is_initialized()
    leave_group()
    rendezvous.remove()
