"""Builds a rank that holds one model together with others: it joins their process group and loads its part."""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from cohort.adapters.layout import AdapterLayout
from cohort.core.cache_directory import default_cache_directory
from cohort.models.weights import load_decoder
from cohort.ranks.commands import RankSetup, ServedExecutor
from cohort.ranks.pipeline.stage_executor import StageExecutor
from cohort.ranks.pipeline.stage_links import DistributedLinks
from cohort.ranks.rank_group import PipelineGroup
from cohort.ranks.rendezvous import is_on_one_host, open_store
from cohort.ranks.tensor.groups import DistributedGroup
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder
from cohort.ranks.tensor.tensor_executor import TensorExecutor
from cohort.training.optimizers import optimizer_for

__all__ = ["build_member", "end_in_group", "leave_group"]

# ranks wait for each other while the slowest loads; a rank that is lost is noticed by rank 0, which ends the others
_PATIENCE = timedelta(hours=4)


def build_member(setup: RankSetup, *, device: torch.device) -> ServedExecutor:
    """Join the group of ``setup`` and return the executor of this rank's part.

    Raises:
        Exception: anything wrong with the model, or no connection to the other ranks.
    """
    plan, layout = setup.group, AdapterLayout(dict(setup.target_linears))
    assert plan is not None, "a member has a group"
    _join(setup, device=device)
    optimizer = optimizer_for(setup.optimizers)
    if isinstance(plan, PipelineGroup):
        decoder = load_decoder(
            setup.model_directory,
            dtype=setup.dtype,
            device=device,
            weight_format=setup.quantization,
            cache_directory=default_cache_directory(),
            room_bytes=setup.room_bytes,
            part=plan.layers(setup.rank),
            has_head=plan.shares_head,
        )
        return StageExecutor(
            decoder,
            plan,
            stage=setup.rank,
            links=DistributedLinks(stage=setup.rank, num_stages=plan.size, device=device, shares_head=plan.shares_head),
            layout=layout,
            train_rows=setup.train_rows,
            settings=setup.settings,
            memory_limit_bytes=setup.memory_limit_bytes,
            optimizer=optimizer,
        )
    group = DistributedGroup()
    return TensorExecutor(
        load_tensor_decoder(setup.model_directory, group, dtype=getattr(torch, setup.dtype), device=device),
        group,
        layout=layout,
        train_rows=setup.train_rows,
        settings=setup.settings,
        memory_limit_bytes=setup.memory_limit_bytes,
        optimizer=optimizer,
    )


def leave_group() -> None:
    """Leave the group that :func:`build_member` joined, if it did; this process may join another."""
    if dist.is_initialized():
        dist.destroy_process_group()


def end_in_group(status: int) -> None:
    """End this process with ``status`` if it is in a group of GPUs, which NCCL leaves together with the other ranks.

    Their processes may have ended by now, and this one would wait for them.
    """
    if dist.is_initialized() and dist.get_backend() == "nccl":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _join(setup: RankSetup, *, device: torch.device) -> None:
    assert setup.group is not None, "a member has a group"
    on_gpu = device.type == "cuda"
    is_here = is_on_one_host(setup.rendezvous)
    if not on_gpu and is_here and any(name == "lo" for _, name in socket.if_nameindex()):
        # the machine's own name need not be known to it
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=open_store(setup.rendezvous, size=setup.group.size, timeout=_PATIENCE),
        rank=setup.rank,
        world_size=setup.group.size,
        timeout=_PATIENCE,
        device_id=torch.device("cuda", torch.cuda.current_device()) if on_gpu else None,
    )
