"""How long is a step of 8 adapters with each strategy, by the batch of each adapter?

ALTO's Figure 13: 8 adapters, rows of 256 tokens, batches of 1, 2, 4 and 8 rows, and one base model on all GPUs. There
FSDP trains them one after another, and adapter parallelism together. Here all strategies train them together: replicas,
adapter parallelism with every layer divided, tensor parallelism and a pipeline, next to one GPU alone. The first losses
of all strategies are compared with those of one GPU.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import hf_config, rows_of_lengths
from benchmarks.several_gpus.part import Part
from benchmarks.several_gpus.strategies import STRATEGIES, loaded, start, timed
from benchmarks.steps.several_gpus import write_model
from benchmarks.steps.step_timing import trial_specs
from cohort.training.executor import ExecutorSettings

__all__ = ["QUESTION", "measure"]

QUESTION = "How long is a step of 8 adapters with each strategy?"
NUM_ADAPTERS, LENGTH, BATCHES = 8, 256, (1, 2, 4, 8)
# passes of more tokens keep more activations than 80 GB hold next to an 8B model
TOKEN_BUDGET = 8192
# bfloat16 has 8 bits: losses near 12 that are summed in another order differ by some thousandths
SAME = 2e-3


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    shape, length = ("tiny", 32) if options.tiny else (options.shape, LENGTH)
    num_layers = options.num_layers or (4 if options.tiny else None)
    batches = BATCHES[:2] if options.tiny else BATCHES
    rows = rows_of_lengths([(length // 2, length - length // 2)] * 256, vocab_size=hf_config(shape)["vocab_size"])
    settings = ExecutorSettings(
        num_slots=NUM_ADAPTERS,
        num_rank_rows=16 * NUM_ADAPTERS,
        token_budget=TOKEN_BUDGET,
        evaluation_token_budget=TOKEN_BUDGET,
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="figure13-") as folder:
        write_model(Path(folder), shape=shape, num_layers=num_layers)
        for strategy in STRATEGIES:
            if options.no_resident and strategy == "replicas":
                continue
            executor = start(Path(folder), strategy, num_ranks=num_ranks, rows=rows, settings=settings)
            try:
                for batch in batches:
                    specs = trial_specs([16] * NUM_ADAPTERS, batch_size=batch)
                    for gpus in (1, num_ranks) if strategy == "replicas" else (num_ranks,):
                        loaded(executor, specs, first_rank_only=gpus == 1)
                        window, repeats = (2, 1) if options.tiny else (max(2, 16 // batch), 2)
                        row = timed(executor, specs, window=window, repeats=repeats)
                        name = "one GPU" if gpus == 1 else strategy
                        found.append({"strategy": name, "gpus": gpus, "batch": batch, **row})
                        print({key: value for key, value in found[-1].items() if key != "first_losses"}, flush=True)
                        for spec in specs:
                            executor.drop(spec.trial_id)
            finally:
                executor.close()
            del executor
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    return Part(
        headline=_headline(found),
        rows=found,
        columns=("strategy", "gpus", "batch", "step_seconds", "tokens_per_second", "worst_loss_error"),
        notes={"gpus": num_ranks, "shape": shape, "layers": num_layers, "adapters": NUM_ADAPTERS, "length": length},
    )


def _headline(found: list[dict[str, Any]]) -> dict[str, float]:
    """Compare every row with one GPU, or with the first strategy where one GPU does not hold the model."""
    first = found[0]["strategy"]
    base = {row["batch"]: row for row in found if row["strategy"] == first}
    headline: dict[str, float] = {}
    for row in found:
        pairs = zip(row["first_losses"], base[row["batch"]]["first_losses"], strict=True)
        row["worst_loss_error"] = max(abs(own - expected) / abs(expected) for own, expected in pairs)
        if row["strategy"] != first:
            speed = base[row["batch"]]["step_seconds"] / row["step_seconds"]
            row["times_first"] = speed
            headline[f"{row['strategy']}_b{row['batch']}"] = speed
    headline["losses_agree"] = float(all(row["worst_loss_error"] < SAME for row in found))
    return headline
