"""Starts the ranks that serve one divided model together."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import RankLostError
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.decoder import Decoder
from cohort.ranks.calls import Call
from cohort.ranks.group_meeting import Rendezvous, leave_group
from cohort.ranks.rank_process import RANK_ENVIRONMENT, RankProcess
from cohort.ranks.serving.divided_ranks import DividedRanks
from cohort.ranks.serving.serving_rank import ServingRank, ServingSetup
from cohort.ranks.tensor.base_shards import check_degree

__all__ = ["DividedModel", "open_divided"]

_START_AGAIN = "start the server again"


class DividedModel:
    """Rank 0's part of a model and its way to the others.

    Attributes:
        decoder: The shard of rank 0.
        layout: The linears of the whole model.
        ranks: The others, as engine and pool know them.
    """

    def __init__(
        self, decoder: Decoder, layout: AdapterLayout, processes: Sequence[RankProcess], rendezvous: Rendezvous
    ) -> None:
        self.decoder, self.layout, self.ranks = decoder, layout, DividedRanks(layout, processes)
        self._processes, self._rendezvous = processes, rendezvous
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
        _end(self._processes, self._rendezvous)


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
    rendezvous = Rendezvous()
    setup = ServingSetup(
        rank=0,
        size=size,
        rendezvous=rendezvous.address,
        model_directory=str(model_directory),
        device=device.type,
        dtype=dtype,
        threads=torch.get_num_threads(),
        num_slots=num_slots,
        num_rank_rows=num_rank_rows,
    )
    # this process is a rank as well
    os.environ |= RANK_ENVIRONMENT
    processes: list[RankProcess] = []
    try:
        for rank in range(1, size):
            processes.append(RankProcess(replace(setup, rank=rank), advice=_START_AGAIN))
        for process in processes:
            # it lives and will come to the meeting
            _take_answer(process)
        for process in processes:
            process.ask(Call.of(ServingRank.load, layout))
        decoder = setup.load_shard()
        for process in processes:
            _take_answer(process)
    except BaseException:
        _end(processes, rendezvous)
        raise
    return DividedModel(decoder, layout, processes, rendezvous)


def _end(processes: Sequence[RankProcess], rendezvous: Rendezvous) -> None:
    for process in processes:
        process.close()
    with contextlib.suppress(RuntimeError):
        leave_group()
    rendezvous.remove()


def _take_answer(process: RankProcess) -> None:
    reply = process.answer()
    if reply.error is not None:
        raise reply.error
