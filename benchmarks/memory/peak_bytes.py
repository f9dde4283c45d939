"""Peak bytes of a packed training step against tokens and adapters, a line through them, and the largest allocation."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, trial_specs
from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.memory.size_inputs import rank_row_bytes
from cohort.models.counts import activation_bytes_per_token
from cohort.models.decoder import Decoder

TOKENS = (1024, 2048, 4096, 8192)
PACKS = ((1, 16), (8, 16), (8, 64), (16, 32))


def measure(decoder: Decoder, *, tokens: int, adapters: int, r: int) -> dict[str, Any]:
    """Return peak and largest allocation of a step over ``tokens`` tokens, all trained."""
    length = min(256, tokens // adapters)
    rows = rows_of_lengths([(1, length - 1)] * 64, vocab_size=decoder.config.vocab_size)
    specs = trial_specs([r] * adapters, batch_size=tokens // adapters // length)
    executor = build_executor(decoder, specs, rows, token_budget=tokens)
    executor.step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    executor.memory.highest_bytes = 0
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python", context=None)
    executor.step()
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    largest = max(entry["size"] for entry in trace if entry["action"] == "alloc")
    row = {
        "tokens": tokens,
        "adapters": adapters,
        "r": r,
        "rank_rows": adapters * aligned_rank(r),
        # the executor resets the allocator's maximum at each half of a pass and keeps the highest itself
        "peak_bytes": max(executor.memory.highest_bytes, torch.cuda.max_memory_allocated()),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "largest_allocation_bytes": largest,
        "tokens_x_vocabulary_bytes": tokens * decoder.config.vocab_size * decoder.dtype.itemsize,
    }
    del executor
    torch.cuda.empty_cache()
    return row


def fitted(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the least-squares line peak = constant + per token + per rank row, and how far it is off."""
    design = np.array([[1.0, row["tokens"], row["rank_rows"]] for row in rows])
    peaks = np.array([float(row["peak_bytes"]) for row in rows])
    (constant, per_token, per_rank_row), *_ = np.linalg.lstsq(design, peaks, rcond=None)
    errors = np.abs(design @ [constant, per_token, per_rank_row] - peaks) / peaks
    return {
        "constant_bytes": float(constant),
        "bytes_per_token": float(per_token),
        "bytes_per_rank_row": float(per_rank_row),
        "mean_error_percent": 100 * float(errors.mean()),
        "max_error_percent": 100 * float(errors.max()),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu()
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    decoder = random_decoder(config, device="cuda", dtype=torch.bfloat16)
    rows = [
        measure(decoder, tokens=tokens, adapters=adapters, r=r)
        for (adapters, r), tokens in itertools.product(PACKS, TOKENS)
    ]
    print_table(rows, columns=list(rows[0]))
    line = fitted(rows)
    line["predicted_bytes_per_rank_row"] = rank_row_bytes(AdapterLayout(dict(decoder.linears)), has_compute_copy=True)
    line["predicted_bytes_per_token"] = activation_bytes_per_token(config, bytes_per_value=2, padding=1.0)
    line["weights_bytes"] = decoder.num_bytes
    print(line)
    # all tokens are trained here, so anything of tokens x vocabulary would show as an allocation of that size
    widest = max(rows, key=lambda row: row["tokens"])
    too_large = [row for row in rows if row["tokens"] == widest["tokens"]]
    for row in too_large:
        assert row["largest_allocation_bytes"] < row["tokens_x_vocabulary_bytes"], row
    write_result(
        arguments.out or RESULTS / f"memory_{arguments.shape}.json",
        question="How much memory does a packed training step take, by tokens and by adapters?",
        headline={
            f"memory_{arguments.shape}_bytes_per_token": line["bytes_per_token"],
            f"memory_{arguments.shape}_bytes_per_rank_row": line["bytes_per_rank_row"],
        },
        rows=rows,
        notes=line,
    )


if __name__ == "__main__":
    main()
