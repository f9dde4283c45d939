"""How long is a frozen product of few rows, by the BLAS and by ours, in tiles of several widths?

A wave of tiles that does not fill the card takes as long as a full one; the BLAS cuts sums over K instead, which ours
may not, so that a row keeps its bits. ``same_bits``: whether all widths gave the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import RESULTS, interleaved, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear.hopper.launch import exact_hopper_product, hopper_product

QUESTION = "How long is a frozen product of few rows, by the BLAS and by ours, in tiles of several widths?"
# (input width, output width) of Llama-3.1-8B
SHAPES = {"qkv": (4096, 6144), "o": (4096, 4096), "gate+up": (4096, 28672), "down": (14336, 4096)}
# weights that take turns, so that none is found in the cache
COPIES = {"qkv": 3, "o": 4, "gate+up": 1, "down": 1}
WIDTHS = (256, 128, 64)
Work = Callable[[], object]


def own_product(x: Tensor, weight: Tensor, y: Tensor, *, forward: bool, columns: int) -> None:
    """Write our product in tiles of one width."""
    hopper_product(x, weight, y, parts=(), s_PTC=None, rank_pass=None, forward=forward, columns=columns)


def rows_of(shape: str, *, forward: bool, counts: list[int]) -> Iterator[dict[str, Any]]:
    """Time one linear in one direction at several numbers of rows."""
    inner, width = SHAPES[shape]
    weights = [(torch.randn(width, inner, device="cuda") * inner**-0.5).bfloat16() for _ in range(COPIES[shape])]
    for count in counts:
        x = torch.randn(count, inner if forward else width, device="cuda").bfloat16()
        y = torch.empty(count, width if forward else inner, device="cuda", dtype=torch.bfloat16)
        exact_hopper_product(x, weights[0], y, forward=forward)
        expected, same = y.clone(), True
        for columns in WIDTHS:
            y.fill_(float("nan"))
            own_product(x, weights[0], y, forward=forward, columns=columns)
            same = same and bool(torch.equal(y, expected))
        found = interleaved(_works(x, weights, y, forward=forward), baseline="blas", rounds=3, block_seconds=0.012)
        times = {f"{name}_us": 1e3 * ms / len(weights) for name, (ms, _) in found.items()}
        ideal = 2 * count * inner * width / 700e6
        yield {"shape": shape, "forward": forward, "rows": count, "us_at_700": ideal, **times, "same_bits": same}


def _works(x: Tensor, weights: list[Tensor], y: Tensor, *, forward: bool) -> dict[str, Work]:
    def turns(one: Callable[[Tensor], object]) -> Work:
        return lambda: [one(weight) for weight in weights]

    def oriented(weight: Tensor) -> Tensor:
        return weight.T if forward else weight

    works = {
        "blas": turns(lambda weight: torch.mm(x, oriented(weight), out=y)),
        "ours": turns(lambda weight: exact_hopper_product(x, weight, y, forward=forward)),
    }
    for columns in WIDTHS:
        works[f"tiles_{columns}"] = turns(
            lambda weight, columns=columns: own_product(x, weight, y, forward=forward, columns=columns)
        )
    return works


def main() -> None:
    """Measure, print, write; each linear as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=sorted(SHAPES), nargs="+", default=["gate+up", "down", "o", "qkv"])
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[640, 768, 1280, 512, 256, 384, 896, 1024, 1152, 1536, 2048]
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "products_by_rows.json")
    options = parser.parse_args()
    need_gpu(hopper=True)
    found: list[dict[str, Any]] = []
    for shape in options.shapes:
        for forward in (True, False):
            for row in rows_of(shape, forward=forward, counts=options.rows):
                found.append(row)
                shown = {key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()}
                print(shown, flush=True)
        headline = {
            f"product_over_blas_{rows}": sum(row["ours_us"] for row in found if row["rows"] == rows)
            / sum(row["blas_us"] for row in found if row["rows"] == rows)
            for rows in options.rows
        }
        write_result(options.out, question=QUESTION, headline=headline, rows=found)
    print_table(found, columns=[*found[0]])


if __name__ == "__main__":
    main()
