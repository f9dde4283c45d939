"""What does each format of the frozen weights cost in a training step, by its size, and how much memory does it save?

``python -m benchmarks.steps.frozen_formats --shape 8b [--formats none fp8 int8 nf4] [--tokens 256 1024 8192]``. One
decoder with random weights at a time; four adapters of rank 16 share each step, recorded as a CUDA graph where a run
would. For each format: seconds to quantise, bytes of the decoder, the median step by number of tokens, and how far the
adapters are from those of the format ``none`` after eight steps. ``--one-copy`` also times fp8 without its transposed
copy, as a model that fills the GPU runs, ``--exact-sums`` fp8 with exact sums in the gradients' products, and
``--codes-apart`` fp8 with all rows rounded by passes of their own, ``--widest-apart`` with the gradient of gate and up,
``--activation-apart`` with what the activation reads and writes, where the feed-forward block is no single node.
``--fused-wide`` makes that block one node whatever the ranks are. ``--ranks 16 32 64 64`` are those of a sweep.
``--shape tiny`` tries it out on a CPU, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import build_executor, median_seconds, trial_specs
from cohort.kernels.fp8_product import op as fp8_op
from cohort.kernels.packed_mlp import op as mlp_op
from cohort.kernels.packed_mlp import triton as mlp_kernels
from cohort.kernels.swiglu import op as swiglu_op
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weight_formats.kinds import fp8
from cohort.training.cuda_graphs.recorded_shapes import GRAPH_TOKENS

QUESTION = "What does each format of frozen weights cost in a training step, and how much memory does it save?"
RANKS = (16, 16, 16, 16)
LONGEST = 1024
ONE_COPY, EXACT_SUMS, CODES_APART, WIDE_APART = "one copy", "exact sums", "codes apart", "widest apart"
ACTIVATION_APART, FUSED_WIDE = "activation apart", "fused wide"


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _freed() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def steps(
    decoder: Decoder, *, ranks: Sequence[int], tokens: Sequence[int], repeats: int, warmups: int
) -> Iterator[dict[str, float]]:
    """Yield the median milliseconds of a step of each size, and the memory that it took at most."""
    for count in tokens:
        # as many sequences as adapters, or more of the longest length
        num_sequences = max(len(ranks), count // LONGEST)
        each = count // num_sequences
        rows = rows_of_lengths([(1, each - 1)] * 64, vocab_size=decoder.config.vocab_size)
        specs = trial_specs(ranks, batch_size=num_sequences // len(ranks))
        executor = build_executor(decoder, specs, rows, token_budget=max(count, 256), graph_tokens=GRAPH_TOKENS)
        found = {f"step_{count}_ms": 1e3 * median_seconds(executor.step, repeats=repeats, warmups=warmups)}
        # the executor's watch resets the device's own peak in each pass
        found["peak_gib"] = executor.memory.highest_bytes / 2**30
        del executor
        _freed()
        yield found


def first_gradients(decoder: Decoder, *, ranks: Sequence[int], count: int) -> tuple[Tensor, float]:
    """Return the gradients that adapters get at first, and the first loss, for errors of the format."""
    rows = rows_of_lengths([(1, count // len(ranks) - 1)] * 8, vocab_size=decoder.config.vocab_size)
    executor = build_executor(decoder, trial_specs(ranks, batch_size=1), rows, token_budget=max(count, 256))
    # B begins at zero, and with it the gradient of A: a few steps make both speak
    losses = [executor.step()[0].loss for _ in range(8)]
    found = torch.cat([executor.weights(trial_id).flatten()[::7] for trial_id in range(len(ranks))]).cpu()
    del executor
    _freed()
    return found, losses[-1]


def measure(
    config: DecoderConfig,
    name: str,
    *,
    ranks: Sequence[int],
    tokens: Sequence[int],
    repeats: int,
    device: str,
    kind: str = "",
    warmups: int = 3,
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Yield what is measured of one format so far, after each size, and its adapters after a few steps."""
    _freed()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    begun = time.perf_counter()
    with patch.object(fp8, "KEPT_SHARE", 0.0 if kind == ONE_COPY else fp8.KEPT_SHARE):
        decoder = random_decoder(config, device=device, dtype=dtype, weight_format=WEIGHT_FORMATS[name])
    _wait()
    row: dict[str, Any] = {
        "format": f"{name}, {kind}" if kind else name,
        "made_seconds": time.perf_counter() - begun,
        "decoder_gib": decoder.num_bytes / 2**30,
    }
    with ExitStack() as patches:
        if kind == EXACT_SUMS:
            patches.enter_context(patch.object(fp8_op, "FAST_SUM_BACKWARD", False))
        if kind == CODES_APART:
            for name in ("code_room", "gradient_factors"):
                patches.enter_context(patch.object(fp8.Fp8Linear, name, lambda *_: None))
        if kind == WIDE_APART:
            patches.enter_context(patch.object(mlp_kernels, "_rounding", lambda *_: None))
        if kind == ACTIVATION_APART:
            patches.enter_context(patch.object(mlp_op, "can_take_codes", lambda _: False))
            patches.enter_context(patch.object(swiglu_op, "handed_behind", lambda _: None))
        if kind == FUSED_WIDE:
            patches.enter_context(patch.object(mlp_op, "NARROW_RANK", mlp_op.WIDEST_FUSED_RANK))
        adapters, row["loss_after_8_steps"] = first_gradients(decoder, ranks=ranks, count=tokens[0])
        for found in steps(decoder, ranks=ranks, tokens=tokens, repeats=repeats, warmups=warmups):
            row |= {**found, "peak_gib": max(row.get("peak_gib", 0.0), found["peak_gib"])}
            yield dict(row), adapters
    del decoder
    _freed()


def headline(rows: Sequence[dict[str, Any]], *, shape: str, tokens: Sequence[int]) -> dict[str, float]:
    """Speed-ups over ``none`` at every size, and bytes."""
    by_format = {row["format"]: row for row in rows}
    found: dict[str, float] = {}
    for name, row in by_format.items():
        word = name.replace(", ", "_").replace(" ", "_")
        found[f"{word}_decoder_gib_{shape}"] = row["decoder_gib"]
        for count in tokens:
            if name != "none" and f"step_{count}_ms" in by_format.get("none", {}) and f"step_{count}_ms" in row:
                ratio = by_format["none"][f"step_{count}_ms"] / row[f"step_{count}_ms"]
                found[f"{word}_speedup_{shape}_{count}"] = ratio
    largest = f"fp8_speedup_{shape}_{tokens[-1]}"
    if largest in found:
        found[f"fp8_speedup_{shape}"] = found[largest]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=None)
    parser.add_argument("--formats", nargs="+", choices=sorted(WEIGHT_FORMATS), default=["none", "fp8", "int8", "nf4"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=7)
    # a pass that is worth recording is recorded once it has come often enough
    parser.add_argument("--warmups", type=int, default=24)
    parser.add_argument("--one-copy", action="store_true")
    parser.add_argument("--exact-sums", action="store_true")
    parser.add_argument("--codes-apart", action="store_true")
    parser.add_argument("--widest-apart", action="store_true")
    parser.add_argument("--activation-apart", action="store_true")
    parser.add_argument("--fused-wide", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = [32, 64] if options.shape == "tiny" else options.tokens
    config = decoder_config(options.shape, num_layers=options.num_layers)
    kinds = {ONE_COPY: options.one_copy, EXACT_SUMS: options.exact_sums, CODES_APART: options.codes_apart}
    kinds[WIDE_APART] = options.widest_apart
    kinds |= {ACTIVATION_APART: options.activation_apart, FUSED_WIDE: options.fused_wide}
    wanted = [(name, "") for name in options.formats]
    wanted += [("fp8", kind) for kind, is_asked in kinds.items() if is_asked]
    rows: list[dict[str, Any]] = []
    plain: Tensor | None = None
    for name, kind in wanted:
        measured = measure(
            config,
            name,
            ranks=options.ranks,
            tokens=tokens,
            repeats=options.repeats,
            device=device,
            kind=kind,
            warmups=3 if options.shape == "tiny" else options.warmups,
        )
        rows.append({})
        for row, adapters in measured:
            plain = adapters if name == "none" else plain
            if plain is not None:
                row["adapters_differ"] = float((adapters - plain).norm() / plain.norm())
            rows[-1] = row
            write_result(
                options.out or RESULTS / f"frozen_formats_{options.shape}.json",
                question=QUESTION,
                headline=headline(rows, shape=options.shape, tokens=tokens),
                rows=rows,
                notes={
                    "adapters": len(options.ranks),
                    "ranks": list(options.ranks),
                    "longest_sequence": LONGEST,
                    "num_layers": config.num_layers,
                },
            )
        print(rows[-1], flush=True)
    print_table(rows, columns=list(rows[0]))


if __name__ == "__main__":
    main()
