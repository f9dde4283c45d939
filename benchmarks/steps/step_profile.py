"""Where the time of a packed step goes: a profile by kernel."""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, frozen_step, median_seconds, trial_specs
from cohort.adapters.mlp import PackedMlp
from cohort.models.weight_formats import WEIGHT_FORMATS


def main() -> None:
    """Profile one frozen and one packed step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--format", choices=sorted(WEIGHT_FORMATS), default="none", help="of the frozen weights")
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--mixed", action="store_true", help="ranks 8, 16, 32 and 64 in turn instead of 16")
    parser.add_argument("--composed-mlp", action="store_true", help="the feed-forward block from packed linears alone")
    arguments = parser.parse_args()
    need_gpu()
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    weight_format = WEIGHT_FORMATS[arguments.format]
    decoder = random_decoder(config, device="cuda", dtype=torch.bfloat16, weight_format=weight_format)
    count = arguments.tokens // arguments.length
    rows = rows_of_lengths([(1, arguments.length - 1)] * 64, vocab_size=config.vocab_size)
    frozen = frozen_step(decoder, rows, range(count))
    PackedMlp.fused = not arguments.composed_mlp
    ranks = [(8, 16, 32, 64)[i % 4] if arguments.mixed else 16 for i in range(arguments.adapters)]
    specs = trial_specs(ranks, batch_size=count // arguments.adapters)
    executor = build_executor(decoder, specs, rows, token_budget=arguments.tokens)
    for name, step in (("frozen", frozen), ("packed", executor.step)):
        print(name, f"{median_seconds(step) * 1e3:.2f} ms wall")
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
            step()
            torch.cuda.synchronize()
        table = profiler.key_averages().table(
            sort_by="self_cuda_time_total", row_limit=arguments.rows, max_name_column_width=70
        )
        for line in table.splitlines():
            cells = line.split("  ")
            print(" | ".join(cell.strip() for cell in cells if cell.strip())[:230])


if __name__ == "__main__":
    main()
