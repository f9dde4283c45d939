"""What does a recorded pass of few tokens cost, by kind of kernel, next to its frozen linears alone?

Adapters of ``--ranks``, one optimizer step a pass, replayed as a sweep's last steps are, in graphs of ``--tokens``
rows: a row is filler, so each sequence is one token shorter. The linears alone are a graph of all frozen
products of the layers, forward and back to their inputs; kinds are taken from a profile of one replayed step, so their
sum is the GPU's busy time. The floor is arithmetic: products at 700 TFLOP/s, and what AdamW and the adapters move at
4.2 TB/s, an H200's rates.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.kernel_kinds import kind_of
from benchmarks.steps.step_timing import build_executor, median_seconds, trial_specs
from cohort.core.numerics import Numerics
from cohort.machine.compile_ahead.launches import collect_launches
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.decoder import Decoder

QUESTION = "What does a recorded pass of few tokens cost, by kind of kernel, next to its frozen linears alone?"
RANKS = (16, 32, 64, 64)
LONGEST = 1024
MOST_KERNELS = 24


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


def floor_ms(decoder: Decoder, *, tokens: int, ranks: Sequence[int]) -> float:
    """Return the least milliseconds of a step on an H200.

    Frozen products forward and back are four operations a weight and token. AdamW moves 34 bytes a parameter of the
    adapters; products read it twice in 16 bits and leave a float32 gradient.
    """
    weights = sum(product.in_features * product.out_features for product in decoder.products)
    parameters = sum(ranks) * sum(num_in + num_out for num_in, num_out in decoder.linears.values())
    return 1e3 * (4 * weights * tokens / 700e12 + (34 + 2 * 2 + 4) * parameters / 4.2e12)


def measured(decoder: Decoder, *, tokens: int, numerics: Numerics, ranks: Sequence[int]) -> dict[str, Any]:
    """Return the step, its kinds and the linears alone at one size."""
    num_sequences = -(-tokens // (LONGEST * len(ranks))) * len(ranks)
    rows = rows_of_lengths([(1, tokens // num_sequences - 2)] * 64, vocab_size=decoder.config.vocab_size)
    specs = trial_specs(ranks, batch_size=num_sequences // len(ranks))
    sizes = {"token_budget": max(tokens, 256), "graph_tokens": tokens + 512}
    executor = build_executor(decoder, specs, rows, numerics=numerics, **sizes)
    step_ms = 1e3 * median_seconds(executor.step, repeats=15, warmups=8)
    kernels = by_kernel(executor.step)
    row: dict[str, Any] = {"tokens": tokens, "numerics": str(numerics), "ranks": list(ranks), "step_ms": step_ms}
    row["recording_seconds"] = 0.0 if executor.captured is None else executor.captured.capture_seconds
    del executor
    torch.cuda.empty_cache()
    row |= {
        "linears_ms": linears_alone(decoder, tokens=tokens),
        "floor_ms": floor_ms(decoder, tokens=tokens, ranks=ranks),
    }
    kinds: dict[str, float] = defaultdict(float)
    for name, (spent, _) in kernels.items():
        kinds[kind_of(name)] += spent
    row["busy_ms"] = sum(kinds.values())
    row["launches"] = sum(count for _, count in kernels.values())
    row["rest_ms"] = row["busy_ms"] - sum(kinds.get(kind, 0.0) for kind in ("products", "lora", "optimizer"))
    row |= {kind: kinds[kind] for kind in sorted(kinds)}
    longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:MOST_KERNELS]
    return row | {"kernels": {name: [round(spent, 3), count] for name, (spent, count) in longest}}


def _headline(shape: str, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {}
    for over in ("linears", "floor"):
        for row in rows:
            numerics = "" if row["numerics"] == Numerics.FAST else f"_{row['numerics']}"
            found[f"small_pass_{shape}_{row['tokens']}{numerics}_over_{over}"] = row["step_ms"] / row[f"{over}_ms"]
    return found


def write(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """Write what was measured so far."""
    headline = _headline(options.shape, rows)
    write_result(
        options.out or RESULTS / f"small_passes_{options.shape}.json", question=QUESTION, headline=headline, rows=rows
    )


def main() -> None:
    """Measure, print, write; each size as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 256, 1024, 512, 2048])
    parser.add_argument("--numerics", choices=[*map(str, Numerics)], nargs="+", default=[str(Numerics.FAST)])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS), help="one adapter each")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu()
    config = decoder_config(options.shape, num_layers=options.num_layers)
    decoder = random_decoder(config, device="cuda", dtype=torch.bfloat16)
    rows: list[dict[str, Any]] = []
    for numerics in map(Numerics, options.numerics):
        with KernelCompiler() as compiler:
            collect_launches(
                decoder,
                compiler=compiler,
                target_linears=decoder.linears,
                adapters=[spec.adapter for spec in trial_specs(sorted(set(options.ranks)), batch_size=1)],
                usual=128,
                pass_tokens=options.tokens,
                numerics=numerics,
            )
            compiled = compiler.wait()
        print(compiled, flush=True)
        for tokens in options.tokens:
            rows.append(measured(decoder, tokens=tokens, numerics=numerics, ranks=options.ranks))
            shown = {name: round(value, 2) if isinstance(value, float) else value for name, value in rows[-1].items()}
            print(shown, flush=True)
            write(options, rows)
    print_table(rows, columns=("tokens", "numerics", "step_ms", "floor_ms", "linears_ms", "busy_ms", "lora", "rest_ms"))


if __name__ == "__main__":
    main()
