"""Tokens per second of 32 adapters in one pack against PEFT and transformers training them one at a time."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, median_seconds, peft_step, trial_specs

LENGTH = 200


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--token-budget", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    rows = rows_of_lengths([(LENGTH * 2 // 5, LENGTH - LENGTH * 2 // 5)] * 64, vocab_size=config.vocab_size)
    peft: dict[int, float] = {}
    for batch_size in arguments.batch_sizes:
        step, model = peft_step(
            arguments.shape, rows, batch_size=batch_size, device=device, num_layers=arguments.num_layers
        )
        peft[batch_size] = batch_size * LENGTH / median_seconds(step, repeats=arguments.repeats + 3, warmups=3)
        del step, model
        if device == "cuda":
            torch.cuda.empty_cache()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = random_decoder(config, device=device, dtype=dtype)
    found = []
    for batch_size in arguments.batch_sizes:
        specs = trial_specs([16] * arguments.adapters, batch_size=batch_size)
        executor = build_executor(decoder, specs, rows, token_budget=arguments.token_budget)
        seconds = median_seconds(executor.step, repeats=arguments.repeats)
        packed = arguments.adapters * batch_size * LENGTH / seconds
        del executor
        found.append(
            {
                "batch_size": batch_size,
                "peft_tokens_per_second": peft[batch_size],
                "packed_tokens_per_second": packed,
                "packed_step_ms": seconds * 1e3,
                "ratio": packed / peft[batch_size],
            }
        )
    print_table(found, columns=list(found[0]))
    write_result(
        arguments.out or RESULTS / f"packed_vs_peft_{arguments.shape}.json",
        question="How much faster do 32 adapters train in one pack than one at a time with PEFT?",
        headline={f"packed_vs_peft_{arguments.shape}_bs{row['batch_size']}": row["ratio"] for row in found},
        rows=found,
        notes={"length": LENGTH, "adapters": arguments.adapters, "r": 16, "token_budget": arguments.token_budget},
    )


if __name__ == "__main__":
    main()
