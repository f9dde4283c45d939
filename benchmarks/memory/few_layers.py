"""Do a few layers tell what a pass through all of them takes?

Each pass of a memory profile is measured twice: as a profile does, through two and six layers, and through all.

    python -m benchmarks.memory.few_layers --shape 8b --numerics exact     # GPU, half a minute
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.adapters.bank import aligned_rank
from cohort.core.numerics import Numerics
from cohort.scheduling.pass_memory import fit_passes
from cohort.training.memory_probe import MemoryProbe, probe_grid

RANKS = (16, 64)
NO_LIMIT = 1 << 50


def compared(probe: MemoryProbe, *, usual: int, longest: int, most_tokens: int) -> tuple[list[dict[str, Any]], float]:
    """Return a row for each pass and kind, and the seconds of the passes through few layers."""
    grid = probe_grid(RANKS, tokens=most_tokens, longest=longest, usual=usual)
    # what libraries set up counts as the first pass's own
    probe.measure(grid[0], through_all=True)
    began = time.perf_counter()
    few = [probe.measure(planned)[0] for planned in grid]
    seconds = time.perf_counter() - began
    whole = [probe.measure(planned, through_all=True)[0] for planned in grid]
    models = fit_passes([peak for of_pass in few for peak in of_pass])
    rows = []
    for planned, told, all_layers in zip(grid, few, whole, strict=True):
        for guess, peak in zip(told, all_layers, strict=True):
            rows.append(
                {
                    "kind": peak.kind.value,
                    "r": planned.r,
                    "tokens": planned.num_tokens,
                    "rows": len(planned.lengths),
                    "trained_share": planned.trained_share,
                    "measured_bytes": peak.num_bytes,
                    "forward_error_percent": _error(guess.forward_bytes, peak.forward_bytes),
                    "backward_error_percent": _error(guess.backward_bytes, peak.backward_bytes),
                    "error_percent": _error(guess.num_bytes, peak.num_bytes),
                    "fitted_error_percent": _error(models.predict(peak.kind, peak.size), peak.num_bytes),
                }
            )
    return rows, seconds


def _error(guess: float, measured: int) -> float:
    return 100 * (guess / measured - 1) if measured else 0.0


def mean_error(rows: list[dict[str, Any]], name: str) -> float:
    """Return the mean absolute error of a column."""
    return sum(abs(row[name]) for row in rows) / len(rows)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", choices=sorted(SHAPES))
    parser.add_argument("--num-layers", type=int, default=None, help="another number of layers, to try it out")
    parser.add_argument("--numerics", default="exact", choices=[kind.value for kind in Numerics])
    parser.add_argument("--usual", type=int, default=155, help="tokens of a usual row")
    parser.add_argument("--longest", type=int, default=400, help="tokens of the longest row")
    parser.add_argument("--most-tokens", type=int, default=8192)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(options.shape, num_layers=options.num_layers)
    decoder = random_decoder(config, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    probe = MemoryProbe(
        decoder,
        target_linears=decoder.linears,
        num_rank_rows=aligned_rank(max(RANKS)),
        memory_limit_bytes=NO_LIMIT,
        numerics=Numerics(options.numerics),
    )
    rows, seconds = compared(probe, usual=options.usual, longest=options.longest, most_tokens=options.most_tokens)
    print_table(rows, columns=[name for name in rows[0] if "bytes" not in name])
    headline = {
        f"few_layers_error_percent_{options.shape}": mean_error(rows, "error_percent"),
        f"few_layers_fitted_error_percent_{options.shape}": mean_error(rows, "fitted_error_percent"),
        f"few_layers_seconds_{options.shape}": seconds,
    }
    print(headline)
    write_result(
        options.out or RESULTS / f"few_layers_{options.shape}.json",
        question="Do a few layers tell what a pass through all of them takes?",
        headline=headline,
        rows=rows,
        notes={"numerics": options.numerics, "ranks": RANKS, "usual": options.usual, "longest": options.longest},
    )


if __name__ == "__main__":
    main()
