"""One model over several ranks with every strategy, for the parts that time them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.several_gpus.kernels_ahead import compile_kernels
from cohort.adapters.spec import AdapterSpec
from cohort.data.tokenised import TokenisedRows
from cohort.memory.rank_groups import pipeline_group
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.weights import load_decoder
from cohort.ranks.launch.start_ranks import start_ranks
from cohort.ranks.rank_group import RankGroupPlan, TensorGroup
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights
from cohort.ranks.training_executor import TrainingExecutor
from cohort.ranks.training_setup import TrainingSetup
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["STRATEGIES", "loaded", "start", "timed"]

OF_RANK_16 = (AdapterSpec(r=16, lora_alpha=32.0),)
STRATEGIES = ("replicas", "adapter_parallel", "pipeline", "tensor")


def start(
    folder: Path,
    strategy: str,
    *,
    num_ranks: int,
    rows: TokenisedRows,
    settings: ExecutorSettings,
    adapters: Sequence[AdapterSpec] = OF_RANK_16,
) -> TrainingExecutor:
    """Start ranks that train such adapters on the model in ``folder`` together; the caller closes them."""
    config = read_config(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = "bfloat16" if device == "cuda" else "float32"
    weights, group = ALL_RESIDENT, _group(strategy, folder, num_ranks=num_ranks)
    compile_kernels(
        config,
        adapters=adapters,
        usual=round(float(rows.lengths.mean())),
        token_budget=settings.token_budget,
        group=group,
    )
    if strategy == "adapter_parallel":
        weights = RankWeights(layers=tuple(range(config.num_layers)), num_ranks=num_ranks, are_divided=True)
    setup = TrainingSetup(
        rank=0,
        model_directory=str(folder),
        device=device,
        dtype=dtype,
        target_linears=linear_shapes(config),
        settings=settings,
        memory_limit_bytes=None,
        train_rows=rows,
        threads=torch.get_num_threads(),
        weights=weights,
        group=group,
    )
    decoder = None
    if group is None:
        streaming = weights.streaming(torch.device(device), rank=0)
        decoder = load_decoder(folder, dtype=dtype, device=device, streaming=streaming)
    return start_ranks(setup, num_ranks=num_ranks, decoder=decoder)


def _group(strategy: str, folder: Path, *, num_ranks: int) -> RankGroupPlan | None:
    if strategy == "tensor":
        return TensorGroup(size=num_ranks)
    if strategy == "pipeline":
        return pipeline_group(read_config(folder), num_stages=num_ranks)
    return None


def loaded(executor: TrainingExecutor, specs: list[TrialSpec], *, first_rank_only: bool = False) -> None:
    """Load the trials, on the first rank or where there is least to do."""
    for spec in specs:
        executor.load(spec, rank=0 if first_rank_only else None)


def timed(executor: TrainingExecutor, specs: list[TrialSpec], *, window: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of one step of all trials, in windows of ``window`` steps; one window warms up."""
    quotas = {spec.trial_id: window for spec in specs}
    first = executor.run(quotas)
    if first.error is not None:
        raise first.error
    seconds, tokens = [], 0
    for _ in range(repeats):
        began = time.perf_counter()
        found = executor.run(quotas)
        seconds.append(time.perf_counter() - began)
        if found.error is not None:
            raise found.error
        tokens += sum(event.num_tokens for events in found.rounds for event in events)
    losses = {event.trial_id: event.loss for event in first.rounds[0]}
    return {
        "step_seconds": statistics.median(seconds) / window,
        "tokens_per_second": tokens / sum(seconds),
        "first_losses": [losses[spec.trial_id] for spec in specs],
        "window": window,
    }
