"""What does a recorded pass of few tokens cost, by kind of kernel, next to its frozen linears alone?

Four adapters of ranks 16, 32, 64 and 64, one optimizer step a pass, replayed as a sweep's last steps are. The linears
alone are a graph of all frozen products of the layers, forward and back to their inputs; kinds are taken from a profile
of one replayed step, so their sum is the GPU's busy time.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, median_seconds, trial_specs
from cohort.models.decoder import Decoder

QUESTION = "What does a recorded pass of few tokens cost, by kind of kernel, next to its frozen linears alone?"
RANKS = (16, 32, 64, 64)
LONGEST = 1024
# by a part of a kernel's name, the first that fits
KINDS = (
    ("shrink", "lora"),
    ("expand", "lora"),
    ("output_side", "lora"),
    ("input_side", "lora"),
    ("sum_partials", "lora"),
    ("activate", "gate and lora"),
    ("gradient_kernel", "gate and lora"),
    ("hopper_product", "products"),
    ("gemm", "products"),
    ("nvjet", "products"),
    ("cutlass", "products"),
    ("_update_kernel", "optimizer"),
    ("norms_kernel", "optimizer"),
    ("query_gradient", "attention"),
    ("key_gradient", "attention"),
    ("delta_kernel", "attention"),
    ("forward_kernel", "attention or norm"),
    ("_backward_kernel", "attention or norm"),
    ("rope", "rotary"),
    ("cross_entropy", "loss"),
)


def kind_of(name: str) -> str:
    """Return the kind of a kernel by its name."""
    return next((kind for part, kind in KINDS if part in name), "other")


def linears_alone(decoder: Decoder, *, tokens: int) -> float:
    """Return the milliseconds of all frozen products of the layers, forward and back to their inputs, replayed."""
    linears = [linear.frozen for layer in decoder.layers for linear in layer.linears]
    sizes = {linear.in_features for linear in linears} | {linear.out_features for linear in linears}
    rows = {size: torch.randn(tokens, size, device="cuda", dtype=decoder.dtype) for size in sizes}

    def work() -> None:
        for linear in linears:
            linear.forward(rows[linear.in_features])
        for linear in reversed(linears):
            linear.grad_input(rows[linear.out_features])

    return median_replay(work)


def by_kind(step: Any) -> dict[str, float]:
    """Return the milliseconds of one step's kernels by kind."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    found: dict[str, float] = defaultdict(float)
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            found[kind_of(event.name)] += event.device_time_total / 1e3
    return dict(found)


def measured(decoder: Decoder, *, tokens: int) -> dict[str, Any]:
    """Return the step, its kinds and the linears alone at one size."""
    num_sequences = max(len(RANKS), tokens // LONGEST)
    rows = rows_of_lengths([(1, tokens // num_sequences - 1)] * 64, vocab_size=decoder.config.vocab_size)
    specs = trial_specs(RANKS, batch_size=num_sequences // len(RANKS))
    executor = build_executor(decoder, specs, rows, token_budget=max(tokens, 256), graph_tokens=max(tokens, 256))
    step_ms = 1e3 * median_seconds(executor.step, repeats=10, warmups=4)
    kinds = by_kind(executor.step)
    del executor
    torch.cuda.empty_cache()
    row: dict[str, Any] = {"tokens": tokens, "step_ms": step_ms, "linears_ms": linears_alone(decoder, tokens=tokens)}
    row["busy_ms"] = sum(kinds.values())
    row["rest_ms"] = row["busy_ms"] - sum(kinds.get(kind, 0.0) for kind in ("products", "lora", "optimizer"))
    return row | {kind: kinds[kind] for kind in sorted(kinds)}


def main() -> None:
    """Measure, print, write; each size as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 256, 1024, 512, 2048])
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu()
    config = decoder_config(options.shape, num_layers=options.num_layers)
    decoder = random_decoder(config, device="cuda", dtype=torch.bfloat16)
    rows = []
    for tokens in options.tokens:
        rows.append(measured(decoder, tokens=tokens))
        print({key: round(value, 2) for key, value in rows[-1].items()}, flush=True)
        headline = {
            f"small_pass_{options.shape}_{row['tokens']}_over_linears": row["step_ms"] / row["linears_ms"]
            for row in rows
        }
        headline |= {f"small_pass_{options.shape}_{row['tokens']}_rest_ms": row["rest_ms"] for row in rows}
        write_result(
            options.out or RESULTS / f"small_passes_{options.shape}.json",
            question=QUESTION,
            headline=headline,
            rows=rows,
        )
    print_table(rows, columns=("tokens", "step_ms", "linears_ms", "busy_ms", "rest_ms"))


if __name__ == "__main__":
    main()
