"""Does the base model take what is planned for it: whole, streamed from host memory, and divided over 2, 4 and 8 GPUs?

One GPU is enough: it holds what rank 0 of several would. The planned bytes are those by which layers are chosen; the
measured ones are the allocator's. On a CPU, where nothing is allocated apart, the weights' own count stands in.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch

from benchmarks.llama_shapes import decoder_config, random_decoder
from benchmarks.several_gpus.part import Part
from cohort.models.counts import weight_bytes
from cohort.models.streaming.weight_ring import NUM_BUFFERS, spread_layers
from cohort.ranks.rank_weights import ALL_RESIDENT, RankWeights

__all__ = ["QUESTION", "measure"]

QUESTION = "Does the base model take the memory that is planned for it?"


def measure(options: argparse.Namespace) -> Part:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    config = decoder_config("tiny" if options.tiny else "8b", num_layers=8 if options.tiny else 32)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    whole = weight_bytes(config, dtype=dtype)
    every = tuple(range(config.num_layers))
    some = spread_layers(config.num_layers // 2, num_layers=config.num_layers)
    kinds = {"resident": ALL_RESIDENT, "half streamed from the host": RankWeights(layers=some)}
    for count in (2, 4, 8):
        kinds[f"divided over {count}"] = RankWeights(layers=every, num_ranks=count, are_divided=True)
    rows: list[dict[str, Any]] = []
    for name, weights in kinds.items():
        before = torch.cuda.memory_allocated() if on_gpu else 0
        decoder = random_decoder(config, device=device.type, dtype=dtype, streaming=weights.streaming(device, rank=0))
        gc.collect()
        ring = decoder.ring
        layer = 0 if ring is None else ring.num_bytes // NUM_BUFFERS
        kept = layer / weights.num_ranks if weights.are_divided else 0
        planned = whole - len(weights.layers) * (layer - kept) + (0 if ring is None else ring.num_bytes)
        held = whole if ring is None else planned
        measured = torch.cuda.memory_allocated() - before if on_gpu else held
        rows.append({"weights": name, "planned_gib": planned / 2**30, "measured_gib": measured / 2**30})
        rows[-1]["error_percent"] = 100 * (measured - planned) / planned
        del decoder, ring
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    headline = {
        "memory_error_percent_worst": max(abs(row["error_percent"]) for row in rows),
        "divided_over_4_share": rows[3]["measured_gib"] / rows[0]["measured_gib"],
    }
    return Part(headline=headline, rows=rows, columns=("weights", "planned_gib", "measured_gib", "error_percent"))
