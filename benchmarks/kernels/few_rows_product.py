"""Products of 16 and 32 rows, as decoding has them: how near the BLAS and a kernel of our own come to the copy rate.

Each time is that of products with different weights one after the other, in one graph, so that no weight is in a cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import RESULTS, copy_ceiling, median_replay, print_table, write_result
from cohort.kernels.exact_product.triton import ProductTile, portable_product

# (in_features, out_features) of an 8B model
SHAPES = {
    "qkv": (4096, 6144),
    "o": (4096, 4096),
    "gate_up": (4096, 28672),
    "down": (14336, 4096),
    "head": (4096, 128256),
}
# columns of a tile, columns of X at a time, warps, stages
TILES = (
    (16, 256, 4, 5),
    (32, 128, 4, 6),
    (32, 256, 4, 4),
    (64, 128, 4, 5),
    (64, 256, 8, 3),
    (128, 64, 4, 6),
    (128, 128, 8, 4),
    (256, 64, 8, 4),
)
LEAST_BYTES = 600 << 20


def milliseconds(weights: Sequence[Tensor], product: Callable[[Tensor], object]) -> float:
    def work() -> None:
        for weight in weights:
            product(weight)

    return median_replay(work, budget_seconds=0.05) / len(weights)


def measure(num_rows: int, name: str, *, ceiling: float) -> list[dict[str, Any]]:
    """Return a row for the BLAS and for each tile."""
    width, num_out = SHAPES[name]
    count = max(1, -(-LEAST_BYTES // (2 * width * num_out)))
    weights = [torch.randn(num_out, width, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(count)]
    x = torch.randn(num_rows, width, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(num_rows, num_out, device="cuda", dtype=torch.bfloat16)
    floor = weights[0].nbytes / (ceiling * 1e12) * 1e6

    def tiled(tile: ProductTile, inner: int) -> Callable[[Tensor], None]:
        return lambda weight: portable_product(x, weight, y, tile=tile, inner=inner)

    works: dict[str, Callable[[Tensor], object]] = {"blas": lambda weight: F.linear(x, weight)}
    for columns, inner, warps, stages in TILES:
        tile = ProductTile(rows=num_rows, columns=columns, warps=warps, stages=stages)
        works[f"{columns} columns, {inner} at a time, {warps} warps, {stages} stages"] = tiled(tile, inner)
    rows = []
    for kind, product in works.items():
        us = milliseconds(weights, product) * 1e3
        rows.append({"rows": num_rows, "product": name, "kernel": kind, "us": us, "over_floor": us / floor})
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--out", type=Path, default=RESULTS / "few_rows_product.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this needs a GPU")
    ceiling = copy_ceiling()
    torch.cuda.empty_cache()
    found: list[dict[str, Any]] = []
    headline: dict[str, float] = {"copy_tb_per_second": ceiling}
    for num_rows in arguments.rows:
        for name in SHAPES:
            own = measure(num_rows, name, ceiling=ceiling)
            found += own
            best = min(own[1:], key=lambda row: float(row["us"]))
            headline[f"own_over_blas_{name}_{num_rows}"] = best["us"] / own[0]["us"]
            print_table(own, columns=list(own[0]))
            write_result(
                arguments.out,
                question="How near do products of few rows come to the rate at which their weights can be read?",
                headline=headline,
                rows=found,
                notes={"shapes": "8B"},
            )
    print({name: round(value, 3) for name, value in headline.items()})


if __name__ == "__main__":
    main()
