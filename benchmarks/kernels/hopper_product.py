"""Is the product for Hopper, with the LoRA term in its main loop, as fast as the BLAS's product without it?

``python -m benchmarks.kernels.hopper_product [--out RESULT.json] [--rows 8192] [--adapters 16]``. Products of
Llama-3.1-8B's linears without a term and with it, and whole linears with the term inside one
product, both or none. Works take turns in one loop and are compared by the median of their ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.adapter_packs import LINEARS, MIXED_RANKS, Pack, build_pack, uneven_lengths
from benchmarks.kernels.gpu_variants_packed_linear import intermediates, whole_work
from benchmarks.measure import RESULTS, interleaved, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace
from cohort.kernels.packed_linear.hopper.launch import hopper_product
from cohort.kernels.packed_linear.launch import launches

QUESTION = "Is the product for Hopper with the LoRA term inside as fast as the BLAS's without it?"
SHAPES = {
    "o": (4096, 4096), "k": (4096, 1024), "qkv": (4096, 6144), "gate": (4096, 14336), "gateup": (4096, 28672),
    "down": (14336, 4096),
}  # fmt: skip
Work = Callable[[], object]


def _plain(rows: int) -> Iterator[dict[str, Any]]:
    for shape, (inner, width) in SHAPES.items():
        weight = (torch.randn(width, inner, device="cuda") * inner**-0.5).bfloat16()
        for forward in (True, False):
            x = torch.randn(rows, inner if forward else width, device="cuda").bfloat16()
            y = torch.empty(rows, width if forward else inner, device="cuda", dtype=torch.bfloat16)
            works = _plain_works(x, weight, y, forward=forward)
            for label, (ms, ratio) in interleaved(works, baseline="torch", rounds=4).items():
                row = {"time": "plain", "shape": shape, "forward": forward, "variant": label, "us": ms * 1e3}
                yield {**row, "ratio": ratio, "tflop_per_s": 2 * rows * inner * width / ms / 1e9}


def _plain_works(x: Tensor, weight: Tensor, y: Tensor, *, forward: bool) -> dict[str, Work]:
    operand = weight.T if forward else weight
    return {
        "torch": lambda: torch.mm(x, operand, out=y),
        "ours": lambda: hopper_product(x, weight, y, parts=(), s_PTC=None, rank_pass=None, forward=forward),
    }


def _term_works(pack: Pack, s: Tensor, *, forward: bool) -> dict[str, Work]:
    """The product without a term, with it as the BLAS and separate launches do, and with it inside."""
    x, dy, frozen, rank_pass = pack.x_TK, pack.dy_TN, pack.frozen, pack.tables.passes[0]
    weight, out = frozen.plain_weight_NK, torch.randn_like(dy if forward else x)
    assert weight is not None, "benchmark packs have plain weights"
    tiles = grouped.tiles_for(x, pack.parts)

    def inside() -> None:
        operand = x if forward else dy
        hopper_product(operand, weight, out, parts=pack.parts, s_PTC=s, rank_pass=rank_pass, forward=forward)

    if not forward:
        return {
            "torch": lambda: frozen.grad_input(dy),
            "torch adding": lambda: frozen.add_grad_input(dy, out),
            "ours, term inside": inside,
        }

    def before() -> None:
        launches.expand(out, pack.parts, s, rank_pass, tables=pack.tables, tiles=tiles, add=False)
        frozen.add_forward(x, out)

    return {"torch": lambda: frozen.forward(x), "expand, torch adding": before, "ours, term inside": inside}


def whole_works(pack: Pack) -> dict[str, Work]:
    """The frozen linear, and the packed one with the term before both products, inside one of them and inside both."""
    before, inside = TermPlace.BEFORE, TermPlace.INSIDE
    tiles = grouped.tiles_for(pack.x_TK, pack.parts)
    places = {
        "term before both": (before, before),
        "inside Y": (inside, before),
        "inside dX": (before, inside),
        "inside both": (inside, inside),
    }
    works: dict[str, Work] = {"frozen": lambda: (pack.frozen.forward(pack.x_TK), pack.frozen.grad_input(pack.dy_TN))}
    for label, (forward, backward) in places.items():
        works[label] = whole_work(pack, replace(tiles, term_forward=forward, term_backward=backward))
    return works


def _linears(rows: int, adapters: int) -> Iterator[dict[str, Any]]:
    ranks = [MIXED_RANKS[i % len(MIXED_RANKS)] for i in range(adapters)]
    for linear, (inner, widths) in LINEARS.items():
        pack = build_pack(inner, widths, lengths=uneven_lengths(rows, adapters), ranks=ranks)
        s, ds = intermediates(pack)
        for forward in (True, False):
            works = _term_works(pack, s if forward else ds, forward=forward)
            for label, (ms, ratio) in interleaved(works, baseline="torch", rounds=4).items():
                row = {"time": "term", "shape": linear, "forward": forward, "variant": label}
                yield {**row, "us": ms * 1e3, "ratio": ratio}
        for label, (ms, ratio) in interleaved(
            whole_works(pack), baseline="frozen", rounds=6, block_seconds=0.06
        ).items():
            yield {"time": "whole", "shape": linear, "variant": label, "us": ms * 1e3, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "hopper_product.json")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--adapters", type=int, default=16)
    options = parser.parse_args()
    need_gpu(hopper=True)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for found in (_linears(options.rows, options.adapters), _plain(options.rows)):
        for row in found:
            rows.append(row)
            write_result(options.out, question=QUESTION, headline=_headline(rows), rows=rows)
    print_table(rows, columns=("time", "shape", "forward", "variant", "us", "ratio", "tflop_per_s"))


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Ours over torch's time for each product without a term, and each whole linear with the term inside both."""
    headline = {}
    for row in rows:
        if row["time"] == "plain" and row["variant"] == "ours":
            headline[f"{row['shape']}_{'y' if row['forward'] else 'dx'}_over_torch"] = row["ratio"]
        if row["time"] == "whole" and row["variant"] == "inside both":
            headline[f"{row['shape']}_inside_over_frozen"] = row["ratio"]
    return headline


if __name__ == "__main__":
    main()
