"""How much faster do several GPUs train, with the whole 8B model on each, and with every layer divided over them?

Weak scaling: each GPU trains as many trials as one GPU alone does, 16 with GSM8K's row lengths and ranks 8 to 64.
Strong scaling: 16 trials in all. One GPU with every layer resident is the baseline of both. Before anything is timed,
trials on two ranks have the same bits. The memory of the base model and the peak of rank 0 stand next to the rates.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch

from benchmarks.llama_shapes import hf_config
from benchmarks.several_gpus.model_folder import model_folder
from benchmarks.several_gpus.part import Part, keep
from benchmarks.steps import several_gpus as replicas
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights

__all__ = ["QUESTION", "measure"]

QUESTION = "How much faster do several GPUs train, with replicas and with the layers divided over them?"
COLUMNS = ("strategy", "scaling", "gpus", "step_ms", "tokens_per_second", "share_of_linear", "peak_gib")


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    if num_ranks < 2:
        raise SystemExit("scaling is measured on two GPUs or more")
    shape = "tiny" if options.tiny else options.shape
    config = hf_config(shape, num_layers=options.num_layers or (4 if options.tiny else None))
    num_layers = config["num_hidden_layers"]
    ours = argparse.Namespace(shape=shape, trials=4 if options.tiny else 16, batch_size=2)
    steps = 2 if options.tiny else 6
    # as a run does; passes that have no recording yet are launched, or recorded, in the steps before
    graph_tokens, after = (0, 3) if options.launched or not on_gpu else (4097, 10)
    same_bits: list[bool] = []
    rows: list[dict[str, Any]] = []
    small_passes = "recorded" if graph_tokens else "launched"
    notes = {
        "gpus": num_ranks,
        "layers": num_layers,
        "trials_per_gpu": ours.trials,
        "divided_layers": num_layers,
        "small_passes": small_passes,
    }

    def part() -> Part:
        return Part(headline=_headline(rows, same_bits, shape=shape), rows=rows, columns=COLUMNS, notes=notes)

    with model_folder(options, config) as folder:
        divided = RankWeights(layers=tuple(range(num_layers)), num_ranks=num_ranks, are_divided=True)
        for strategy, weights in (("replicas", ALL_RESIDENT), ("adapter_parallel", divided)):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            executor, load_seconds = replicas.start(
                folder, num_ranks=num_ranks, options=ours, weights=weights, graph_tokens=graph_tokens
            )
            try:
                same_bits.append(replicas.same_bits(executor, ours))
                cases = [("weak", num_ranks, ours.trials * num_ranks), ("strong", num_ranks, ours.trials)]
                for scaling, count, trials in [("one", 1, ours.trials), *cases] if strategy == "replicas" else cases:
                    specs = replicas.specs_of(ours, count=trials)
                    for spec in specs:
                        executor.load(spec, rank=spec.trial_id // len(replicas.RANKS) % count)
                    row = {
                        "strategy": strategy,
                        "scaling": scaling,
                        "gpus": count,
                        **replicas.timed(executor, steps, after=after),
                    }
                    row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
                    row["load_seconds"] = load_seconds
                    row["share_of_linear"] = row["tokens_per_second"] / (rows or [row])[0]["tokens_per_second"] / count
                    rows.append(row)
                    print(row, flush=True)
                    keep(options, part())
                    for spec in specs:
                        executor.drop(spec.trial_id)
            finally:
                executor.close()
            del executor
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    return part()


def _headline(rows: list[dict[str, Any]], same_bits: list[bool], *, shape: str) -> dict[str, float]:
    short = {"adapter_parallel": "ap", "replicas": "replicas"}
    headline = {"tokens_per_second_1": rows[0]["tokens_per_second"]}
    for row in rows[1:]:
        strong = "_strong" if row["scaling"] == "strong" else ""
        headline[f"scaling_{short[row['strategy']]}_{shape}{strong}"] = row["share_of_linear"]
    return {**headline, "same_bits": float(all(same_bits))}
