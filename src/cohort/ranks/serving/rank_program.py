"""The program of a rank that serves: ``python -m cohort.ranks.serving.rank_program DESCRIPTOR``.

It loads its shard and carries out what rank 0 says until the connection closes, or rank 0 is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import local_layout
from cohort.core.errors import CohortError
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.ranks.commands import Reply
from cohort.ranks.rank_server import portable
from cohort.ranks.serving.serving_rank import Command, ServingRank
from cohort.ranks.tensor.groups import DistributedGroup
from cohort.ranks.tensor.one_shot_group import OneShotGroup
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.ranks.transport import Channel

__all__ = ["ServingRankSetup", "join_group", "main"]

_JOIN_SECONDS = 300
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ServingRankSetup:
    """What a rank begins with; all ranks of a server have the same but for their number.

    Attributes:
        rank: Its number, which is also that of its GPU.
        size: How many ranks there are.
        store: A file through which the ranks find each other.
        model_directory: Local files of the base model.
        device: ``cpu`` or ``cuda``.
        dtype: In what the model computes, by torch's name.
        threads: CPU threads of torch.
        num_slots, num_rank_rows: Of the bank.
    """

    rank: int
    size: int
    store: str
    model_directory: str
    device: str
    dtype: str
    threads: int
    num_slots: int
    num_rank_rows: int

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", self.rank) if self.device == "cuda" else torch.device("cpu")


def join_group(setup: ServingRankSetup) -> DistributedGroup:
    """Meet the other ranks: NCCL on GPUs, with sums of small tensors in one kernel where the GPUs see each other."""
    on_gpu = setup.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(setup.rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{setup.store}",
        rank=setup.rank,
        world_size=setup.size,
        timeout=timedelta(seconds=_JOIN_SECONDS),
        device_id=setup.torch_device if on_gpu else None,
    )
    return OneShotGroup.of(setup.torch_device, getattr(torch, setup.dtype)) if on_gpu else DistributedGroup()


def _build(setup: ServingRankSetup) -> ServingRank:
    torch.set_num_threads(setup.threads)
    group = join_group(setup)
    decoder = load_tensor_decoder(
        setup.model_directory, group, dtype=getattr(torch, setup.dtype), device=setup.torch_device
    )
    whole = AdapterLayout(linear_shapes(check_checkpoint(Path(setup.model_directory))))
    layout = local_layout(whole, rank=setup.rank, size=setup.size)
    return ServingRank(decoder, layout, num_slots=setup.num_slots, num_rank_rows=setup.num_rank_rows)


def main() -> None:
    """Serve as a rank until rank 0 is gone."""
    # the terminal's signals are for rank 0, which lets running requests finish
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    channel = Channel(Connection(int(sys.argv[1])))
    with contextlib.suppress(EOFError, OSError):
        setup: ServingRankSetup = channel.receive()
        try:
            # the first answer says that the process lives and will come to the meeting
            channel.send(Reply())
            rank = _build(setup)
        except (CohortError, RuntimeError, OSError) as error:
            channel.send(Reply(error=portable(error)))
            return
        channel.send(Reply())
        _serve(channel, rank)
    sys.stdout.flush()
    sys.stderr.flush()
    # without the ends of libraries: a group whose other ranks are gone would hang at shutdown
    os._exit(0)


def _serve(channel: Channel, rank: ServingRank) -> None:
    while True:
        command: Command = channel.receive()
        try:
            command.run(rank)
        except Exception as error:
            # the others wait for this rank in the middle of a pass: there is no way on
            traceback.print_exc()
            channel.send(Reply(error=portable(error)))
            sys.stderr.flush()
            os._exit(1)


def _end_with_parent() -> None:
    # a rank that waits for rank 0 in a collective does not see that the connection has closed
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
