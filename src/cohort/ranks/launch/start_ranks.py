"""Starts the processes of a run's ranks and joins them to the executor that rank 0 commands."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from cohort.adapters.layout import AdapterLayout
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.ranks.group_meeting import Rendezvous
from cohort.ranks.grouped_executor import GroupedExecutor
from cohort.ranks.launch.launched import LaunchedRanks
from cohort.ranks.pipeline.windows_ahead import windows_ahead
from cohort.ranks.rank_link import RankLink
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.replicated_executor import ReplicatedExecutor
from cohort.ranks.training_executor import TrainingExecutor
from cohort.ranks.training_setup import TrainingSetup

__all__ = ["start_ranks"]


def start_ranks(
    setup: TrainingSetup, *, num_ranks: int, decoder: Decoder | None, launched: LaunchedRanks | None = None
) -> TrainingExecutor:
    """Return an executor of ``num_ranks`` ranks; processes are started for those that this one is not.

    Args:
        setup: That of rank 0.
        decoder: The model of this process, which is rank 0; None where ``setup`` has a group, whose ranks are all
            processes of their own.
        launched: The other ranks, where a launcher has started their processes.

    Raises:
        RankLostError: a rank ended.
        Exception: a rank could not build its executor.
    """
    # a notebook lives on after an error, and would keep processes that hold a GPU each
    with contextlib.ExitStack() as started:
        executor: TrainingExecutor
        if setup.group is not None:
            executor = _group(setup, started, launched)
        else:
            assert decoder is not None, "this process trains, so it has the model"
            begin = RankProcess if launched is None else launched.begin
            others: list[RankLink] = []
            for rank in range(1, num_ranks):
                others.append(begin(replace(setup, rank=rank)))
                started.callback(others[-1].close)
            local = setup.local(decoder)
            executor = ReplicatedExecutor(local, others) if others else local
        started.pop_all()
    return executor


def _group(setup: TrainingSetup, started: contextlib.ExitStack, launched: LaunchedRanks | None) -> GroupedExecutor:
    """Start the ranks of a group; this process is none of them, so rank 0 is a new one also in a launch."""
    assert setup.group is not None, "a group was asked for"
    several = launched is not None and launched.num_hosts > 1
    rendezvous = Rendezvous(host=launched.place.first_host if launched is not None and several else None)
    started.callback(rendezvous.remove)
    ranks: list[RankLink] = []
    for rank in range(setup.group.size):
        own = replace(setup, rank=rank, rendezvous=rendezvous.address)
        if launched is None:
            ranks.append(RankProcess(own))
        elif rank == 0:
            ranks.append(RankProcess(replace(own, gpu=launched.place.local_rank)))
        else:
            ranks.append(launched.begin(own))
        started.callback(ranks[-1].kill)
    return GroupedExecutor(
        ranks,
        setup.group,
        layout=AdapterLayout(dict(setup.target_linears)),
        settings=setup.settings,
        rendezvous=rendezvous,
        ahead=windows_ahead(
            setup.group,
            microbatches=setup.microbatches,
            train_rows=setup.train_rows,
            device_type=setup.device.partition(":")[0],
            config=lambda: read_config(Path(setup.model_directory)),
        ),
    )
