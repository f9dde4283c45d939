"""Ranks that each hold the model of a folder, for benchmarks that have no task to start them from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from cohort.data.tokenised import TokenisedRows
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.ranks.rank_process import RankProcess
from cohort.ranks.rank_weights import RankWeights
from cohort.ranks.training_setup import TrainingSetup
from cohort.training.executor_settings import ExecutorSettings

__all__ = ["local_rank", "other_ranks", "rank_zero_decoder"]

_Kind = TypeVar("_Kind", bound=LocalExecutor)


def _device() -> tuple[str, str]:
    return ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")


def rank_zero_decoder(folder: Path, *, weights: RankWeights) -> Decoder:
    """Load the model of ``folder`` as the first rank holds it."""
    device, dtype = _device()
    return load_decoder(folder, dtype=dtype, device=device, streaming=weights.streaming(torch.device(device), rank=0))


def other_ranks(
    folder: Path, *, num_ranks: int, settings: ExecutorSettings, rows: TokenisedRows, weights: RankWeights
) -> list[RankProcess]:
    """Start all ranks but the first, which load the model while the caller goes on."""
    device, dtype = _device()
    setup = TrainingSetup(
        rank=1,
        model_directory=str(folder),
        device=device,
        dtype=dtype,
        target_linears=linear_shapes(read_config(folder)),
        settings=settings,
        memory_limit_bytes=None,
        train_rows=rows,
        threads=torch.get_num_threads(),
        weights=weights,
    )
    return [RankProcess(replace(setup, rank=rank)) for rank in range(1, num_ranks)]


def local_rank(
    folder: Path, decoder: Decoder, *, settings: ExecutorSettings, rows: TokenisedRows, kind: type[_Kind]
) -> _Kind:
    """Return the first rank, in this process, as an executor of ``kind``."""
    return kind(
        decoder,
        target_linears=linear_shapes(read_config(folder)),
        train_rows=rows,
        settings=settings,
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
