"""Starts the ranks that serve one divided model together."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import RankLostError
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.decoder import Decoder
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.serving.divided_ranks import DividedRanks
from cohort.ranks.serving.rank_program import ServingRankSetup, join_group
from cohort.ranks.tensor.base_shards import check_degree
from cohort.ranks.tensor.tensor_decoder import load_tensor_decoder

__all__ = ["DividedModel", "open_divided"]

_PROGRAM = "cohort.ranks.serving.rank_program"
_START_AGAIN = "start the server again"


class DividedModel:
    """Rank 0's part of a model and its way to the others.

    Attributes:
        decoder: The shard of rank 0.
        layout: The linears of the whole model.
        ranks: The others, as engine and pool know them.
    """

    def __init__(self, decoder: Decoder, layout: AdapterLayout, processes: Sequence[RankProcess], folder: str) -> None:
        self.decoder, self.layout, self.ranks = decoder, layout, DividedRanks(layout, processes)
        self._processes, self._folder = processes, folder
        self._is_closing = False

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Say in a thread of its own how the first rank ended, unless by :meth:`close`."""

        def wait() -> None:
            try:
                # a rank that serves says nothing until it fails or ends
                ready, _, _ = select.select(self._processes, [], [])
                reply = ready[0].answer()
                reason = f"rank {ready[0].rank} failed: {reply.error}; {_START_AGAIN}"
            except (RankLostError, OSError, ValueError) as lost:
                reason = str(lost)
            if not self._is_closing:
                on_lost(reason)

        threading.Thread(target=wait, name="cohort-ranks", daemon=True).start()

    def close(self) -> None:
        """End the other ranks."""
        self._is_closing = True
        _end(self._processes, self._folder)


def open_divided(
    model_directory: Path, *, size: int, device: torch.device, dtype: str, num_slots: int, num_rank_rows: int
) -> DividedModel:
    """Start ``size - 1`` processes, and load the model on all ranks at once.

    Raises:
        InputError: ``size`` does not divide the model, or anything is wrong with its files.
        RankLostError: a process ended while it loaded.
    """
    config = check_checkpoint(model_directory)
    check_degree(config, size)
    layout = AdapterLayout(linear_shapes(config))
    folder = tempfile.mkdtemp(prefix="cohort-serve-")
    setup = ServingRankSetup(
        rank=0,
        size=size,
        store=f"{folder}/group",
        model_directory=str(model_directory),
        device=device.type,
        dtype=dtype,
        threads=torch.get_num_threads(),
        num_slots=num_slots,
        num_rank_rows=num_rank_rows,
    )
    # multicast hangs on some hosts, and nothing here needs it
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    processes: list[RankProcess] = []
    try:
        for rank in range(1, size):
            processes.append(RankProcess(replace(setup, rank=rank), program=_PROGRAM, advice=_START_AGAIN))
        for process in processes:
            _take_answer(process)
        group = join_group(setup)
        decoder = load_tensor_decoder(model_directory, group, dtype=getattr(torch, dtype), device=setup.torch_device)
        for process in processes:
            _take_answer(process)
    except BaseException:
        _end(processes, folder)
        raise
    return DividedModel(decoder, layout, processes, folder)


def _end(processes: Sequence[RankProcess], folder: str) -> None:
    for process in processes:
        process.close()
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    shutil.rmtree(folder, ignore_errors=True)


def _take_answer(process: RankProcess) -> None:
    reply = process.answer()
    if reply.error is not None:
        raise reply.error
