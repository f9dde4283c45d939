"""How much faster do several GPUs train, with the whole 8B model on each, and with every layer divided over them?

Weak scaling: each GPU trains as many trials as one GPU alone does, 16 with GSM8K's row lengths and ranks 8 to 64. One
GPU with every layer resident is the baseline of both. Before anything is timed, trials on two ranks have the same bits.
The memory of the base model and the peak of rank 0 stand next to the rates.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.several_gpus.part import Part
from benchmarks.steps import several_gpus as replicas
from cohort.parallel.rank_weights import ALL_RESIDENT, RankWeights

__all__ = ["QUESTION", "measure"]

QUESTION = "How much faster do several GPUs train, with replicas and with the layers divided over them?"


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    num_ranks = options.gpus or (torch.cuda.device_count() if on_gpu else 2)
    if num_ranks < 2:
        raise SystemExit("scaling is measured on two GPUs or more")
    shape = "tiny" if options.tiny else "8b"
    num_layers = options.num_layers or (4 if options.tiny else 32)
    ours = argparse.Namespace(shape=shape, trials=4 if options.tiny else 16, batch_size=2)
    steps = 2 if options.tiny else 12
    found: dict[str, Any] = {"same_bits": []}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        replicas.write_model(Path(folder), shape=shape, num_layers=num_layers)
        divided = RankWeights(layers=tuple(range(num_layers)), num_ranks=num_ranks, are_divided=True)
        for strategy, weights in (("replicas", ALL_RESIDENT), ("adapter_parallel", divided)):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            executor, load_seconds = replicas.start(Path(folder), num_ranks=num_ranks, options=ours, weights=weights)
            try:
                found["same_bits"].append(replicas.same_bits(executor, ours))
                for count in (1, num_ranks) if strategy == "replicas" else (num_ranks,):
                    specs = replicas.specs_of(ours, count=ours.trials * count)
                    for spec in specs:
                        executor.load(spec, rank=spec.trial_id // len(replicas.RANKS) % count)
                    row = {"strategy": strategy, "gpus": count, **replicas.timed(executor, steps)}
                    row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
                    rows.append({**row, "load_seconds": load_seconds})
                    print(rows[-1])
                    for spec in specs:
                        executor.drop(spec.trial_id)
            finally:
                executor.close()
            del executor
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    one = rows[0]["tokens_per_second"]
    for row in rows:
        row["share_of_linear"] = row["tokens_per_second"] / one / row["gpus"]
    headline = {
        "scaling_replicas_8b": rows[1]["share_of_linear"],
        "scaling_ap_8b": rows[2]["share_of_linear"],
        "same_bits": float(all(found["same_bits"])),
    }
    columns = ("strategy", "gpus", "step_ms", "tokens_per_second", "share_of_linear", "peak_gib")
    notes = {"gpus": num_ranks, "layers": num_layers, "trials_per_gpu": ours.trials, "divided_layers": num_layers}
    return Part(headline=headline, rows=rows, columns=columns, notes=notes)
