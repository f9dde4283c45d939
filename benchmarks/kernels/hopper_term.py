"""What does the LoRA term cost inside the product for Hopper, at one clock?

``python -m benchmarks.kernels.hopper_term [--out RESULT.json]``. The GPU's power limit moves clocks by more than the
term costs, so here single launches start from idle, where nothing limits them: a product by the BLAS, ours without a
term and ours with it, for segments that end with a tile of 128 rows and for those that end anywhere. Whole linears
besides, at that clock and in blocks as ``hopper_product.py`` times them.

The committed result was put together from several runs: ``kernel`` names which of two forms of the kernel a row is of
(the headline is the second's, which was kept), and packs whose segments end with a tile were timed again for q + k + v
and o alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.adapter_packs import LINEARS, MIXED_RANKS, Pack, build_pack, uneven_lengths
from benchmarks.kernels.gpu_variants_packed_linear import intermediates
from benchmarks.kernels.hopper_product import whole_works
from benchmarks.measure import RESULTS, capture, interleaved, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear.hopper.launch import hopper_product

QUESTION = "What does the LoRA term cost inside the product for Hopper, where no power limit moves the clock?"
ROWS, ADAPTERS = 8192, 16
MIXED = tuple(MIXED_RANKS[index % len(MIXED_RANKS)] for index in range(ADAPTERS))
# (where segments end, ranks)
PACKS: dict[str, tuple[list[int], tuple[int, ...]]] = {
    "anywhere, mixed": (uneven_lengths(ROWS, ADAPTERS), MIXED),
    "with a tile, mixed": ([ROWS // ADAPTERS] * ADAPTERS, MIXED),
    "with a tile, 16": ([ROWS // ADAPTERS] * ADAPTERS, (16,) * ADAPTERS),
    "with a tile, 64": ([ROWS // ADAPTERS] * ADAPTERS, (64,) * ADAPTERS),
}
WHOLES = ("term before both", "inside Y", "inside dX", "inside both")
Work = Callable[[], object]


def from_idle(works: Mapping[str, Work], *, repeats: int = 14) -> dict[str, float]:
    """Return the median microseconds of each work's graph, launched alone after 3 ms of rest.

    A short spin ahead of it hides the launch itself.
    """
    graphs = {name: capture(work) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, graph in graphs.items():
            time.sleep(0.003)
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(200_000)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            times[name].append(start.elapsed_time(stop) * 1e3)
    return {name: statistics.median(own) for name, own in times.items()}


def _products(pack: Pack, *, forward: bool) -> dict[str, Work]:
    weight = pack.frozen.plain_weight_NK
    assert weight is not None, "benchmark packs have plain weights"
    x, out = (pack.x_TK, torch.empty_like(pack.dy_TN)) if forward else (pack.dy_TN, torch.empty_like(pack.x_TK))
    s = intermediates(pack)[0 if forward else 1]
    rank_pass = pack.tables.passes[0]
    return {
        "torch": lambda: pack.frozen.forward(x) if forward else pack.frozen.grad_input(x),
        "plain": lambda: hopper_product(x, weight, out, parts=(), s_PTC=None, rank_pass=None, forward=forward),
        "term": lambda: hopper_product(x, weight, out, parts=pack.parts, s_PTC=s, rank_pass=rank_pass, forward=forward),
    }


def _rows() -> Iterator[dict[str, Any]]:
    for linear, (in_features, widths) in LINEARS.items():
        for name, (lengths, ranks) in PACKS.items():
            torch.manual_seed(0)
            pack = build_pack(in_features, widths, lengths=lengths, ranks=ranks)
            for forward in (True, False):
                us = from_idle(_products(pack, forward=forward))
                row = {"time": "product", "linear": linear, "segments end": name, "forward": forward}
                yield {**row, **us, "term_over_plain": us["term"] / us["plain"]}
            if lengths is PACKS["anywhere, mixed"][0]:
                works = whole_works(pack)
                us = from_idle(works, repeats=10)
                yield {"time": "whole, from idle", "linear": linear} | {k: v / us["frozen"] for k, v in us.items()}
                blocks = interleaved(works, baseline="frozen", rounds=10, block_seconds=0.06)
                yield {"time": "whole, in blocks", "linear": linear} | {k: ratio for k, (_, ratio) in blocks.items()}
            del pack
            torch.cuda.empty_cache()


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The term over the product without it, for mixed ranks."""
    headline = {}
    for row in rows:
        if row["time"] == "product" and row["segments end"].endswith("mixed"):
            place = "aligned" if row["segments end"].startswith("with") else "anywhere"
            headline[f"{row['linear']}_{'y' if row['forward'] else 'dx'}_{place}"] = row["term_over_plain"]
    return headline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "hopper_term.json")
    options = parser.parse_args()
    need_gpu(hopper=True)
    rows: list[dict[str, Any]] = []
    for row in _rows():
        rows.append(row)
        write_result(options.out, question=QUESTION, headline=_headline(rows), rows=rows)
    columns = ("time", "linear", "segments end", "forward", "torch", "plain", "term", "term_over_plain")
    print_table(rows, columns=(*columns, *WHOLES))


if __name__ == "__main__":
    main()
