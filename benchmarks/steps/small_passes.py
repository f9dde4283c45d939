"""What does a recorded pass of few tokens cost, by kind of kernel, next to its frozen linears alone?

Four adapters of ranks 16, 32, 64 and 64, one optimizer step a pass, replayed as a sweep's last steps are, in graphs of
``--tokens`` rows: a row is filler, so each sequence is one token shorter. The linears alone are a graph of all frozen
products of the layers, forward and back to their inputs; kinds are taken from a profile of one replayed step, so their
sum is the GPU's busy time. ``--finer`` times the shares of shrinks that recorded passes may have, in turn.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, median_seconds, trial_specs
from cohort.kernels.compile_ahead import KernelCompiler
from cohort.kernels.packed_linear.choice import tiles as choice
from cohort.kernels.packed_linear.launch import tables as launch_tables
from cohort.models.decoder import Decoder
from cohort.training.compile_ahead import compile_ahead

QUESTION = "What does a recorded pass of few tokens cost, by kind of kernel, next to its frozen linears alone?"
RANKS = (16, 32, 64, 64)
LONGEST = 1024
MOST_KERNELS = 24
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


def by_kernel(step: Any) -> dict[str, tuple[float, int]]:
    """Return the milliseconds and the launches of one step's kernels by name."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            spent, count = found[event.name[:70]]
            found[event.name[:70]] = spent + event.device_time_total / 1e3, count + 1
    return dict(found)


@contextmanager
def at_most(finer: int) -> Iterator[None]:
    """Let recorded passes divide the shares of a shrink at most so often."""

    def shares(slot_rows: int) -> int:
        return finer if slot_rows <= 192 or finer == 1 else max(1, finer // 2) if slot_rows <= 512 else 1

    with patch.object(launch_tables, "MOST_FINER", finer), patch.object(launch_tables, "finer_shares", shares):
        yield


def measured(decoder: Decoder, *, tokens: int, finer: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the step, its kinds and the linears alone at one size, for each of ``finer``."""
    num_sequences = max(len(RANKS), tokens // LONGEST)
    rows = rows_of_lengths([(1, tokens // num_sequences - 2)] * 64, vocab_size=decoder.config.vocab_size)
    specs = trial_specs(RANKS, batch_size=num_sequences // len(RANKS))
    alone = linears_alone(decoder, tokens=tokens)
    for most in finer:
        with at_most(most):
            executor = build_executor(decoder, specs, rows, token_budget=max(tokens, 256), graph_tokens=tokens + 512)
            step_ms = 1e3 * median_seconds(executor.step, repeats=15, warmups=8)
            kernels = by_kernel(executor.step)
        recorded = executor.captured
        row: dict[str, Any] = {"tokens": tokens, "finer": most, "step_ms": step_ms, "linears_ms": alone}
        row["recording_seconds"] = 0.0 if recorded is None else recorded.capture_seconds
        del executor, recorded
        torch.cuda.empty_cache()
        kinds: dict[str, float] = defaultdict(float)
        for name, (spent, _) in kernels.items():
            kinds[kind_of(name)] += spent
        row["busy_ms"] = sum(kinds.values())
        row["launches"] = sum(count for _, count in kernels.values())
        row["rest_ms"] = row["busy_ms"] - sum(kinds.get(kind, 0.0) for kind in ("products", "lora", "optimizer"))
        row |= {kind: kinds[kind] for kind in sorted(kinds)}
        longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:MOST_KERNELS]
        yield row | {"kernels": {name: [round(spent, 3), count] for name, (spent, count) in longest}}


def write(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """Write what was measured so far; headlines are of the shares that ship."""
    shipped = [row for row in rows if row["finer"] == choice.MOST_FINER]
    headline = {
        f"small_pass_{options.shape}_{row['tokens']}_over_linears": row["step_ms"] / row["linears_ms"]
        for row in shipped
    }
    headline |= {f"small_pass_{options.shape}_{row['tokens']}_rest_ms": row["rest_ms"] for row in shipped}
    write_result(
        options.out or RESULTS / f"small_passes_{options.shape}.json", question=QUESTION, headline=headline, rows=rows
    )


def main() -> None:
    """Measure, print, write; each size as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 256, 1024, 512, 2048])
    parser.add_argument("--finer", type=int, nargs="+", default=[choice.MOST_FINER])
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu()
    config = decoder_config(options.shape, num_layers=options.num_layers)
    decoder = random_decoder(config, device="cuda", dtype=torch.bfloat16)
    with KernelCompiler() as compiler:
        compiled = compile_ahead(
            decoder,
            compiler=compiler,
            target_linears=decoder.linears,
            adapters=[spec.adapter for spec in trial_specs(sorted(set(RANKS)), batch_size=1)],
            usual=128,
            pass_tokens=options.tokens,
        )
    print(compiled, flush=True)
    rows: list[dict[str, Any]] = []
    for tokens in options.tokens:
        for row in measured(decoder, tokens=tokens, finer=options.finer):
            rows.append(row)
            print(
                {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
            write(options, rows)
    print_table(rows, columns=("tokens", "finer", "step_ms", "linears_ms", "busy_ms", "lora", "rest_ms"))


if __name__ == "__main__":
    main()
