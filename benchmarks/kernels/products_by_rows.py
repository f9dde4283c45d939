"""How long is a frozen product of few rows, by the BLAS and by ours, and by ours in a graph of more rows than it has?

A recorded pass of a fixed number of rows computes rows of filler. A product that reads the number of rows in use from
the device leaves them out: ``used`` is ours over a stream of ``--capacity`` rows of which the first are in use, in
tiles as wide as for those rows; ``used, tiles of the capacity`` in tiles as wide as for all.
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
from cohort.kernels.packed_linear.hopper.launch import hopper_product, tile_strips
from cohort.kernels.packed_linear.launch.support import num_multiprocessors

QUESTION = "How long is a frozen product of few rows, by the BLAS and by ours that reads the rows in use?"
# (input width, output width) of Llama-3.1-8B
SHAPES = {"qkv": (4096, 6144), "o": (4096, 4096), "gate+up": (4096, 28672), "down": (14336, 4096)}
# weights that take turns, so that none is found in the cache
COPIES = {"qkv": 3, "o": 4, "gate+up": 1, "down": 1}
Work = Callable[[], object]


def product(x: Tensor, weight: Tensor, y: Tensor, *, forward: bool, like_rows: int, used: Tensor | None) -> None:
    """Write the product in the tiles of a stream of ``like_rows`` rows."""
    for own, columns in tile_strips(like_rows, y.shape[1], programs=num_multiprocessors(x.device)):
        hopper_product(
            x,
            weight[own] if forward else weight[:, own],
            y[:, own],
            parts=(),
            s_PTC=None,
            rank_pass=None,
            forward=forward,
            columns=columns,
            used=used,
        )


def rows_of(shape: str, *, forward: bool, counts: list[int], capacity: int) -> Iterator[dict[str, Any]]:
    """Time one linear in one direction at several numbers of rows."""
    inner, width = SHAPES[shape]
    weights = [(torch.randn(width, inner, device="cuda") * inner**-0.5).bfloat16() for _ in range(COPIES[shape])]
    x = torch.randn(capacity, inner if forward else width, device="cuda").bfloat16()
    y = torch.empty(capacity, width if forward else inner, device="cuda", dtype=torch.bfloat16)
    used = torch.zeros(1, dtype=torch.int32, device="cuda")
    for count in counts:
        used.fill_(count)
        own = {"forward": forward, "like_rows": count, "used": None}
        product(x[:count], weights[0], y[:count], **own)
        expected = y[:count].clone()
        y.fill_(float("nan"))
        product(x, weights[0], y, **own | {"used": used})
        same = bool(torch.equal(y[:count], expected))
        works = _works(x, weights, y, forward=forward, count=count, capacity=capacity, used=used)
        found = interleaved(works, baseline="blas", rounds=3, block_seconds=0.012)
        times = {f"{name}_us": 1e3 * ms / len(weights) for name, (ms, _) in found.items()}
        ideal = 2 * count * inner * width / 700e6
        yield {"shape": shape, "forward": forward, "rows": count, "us_at_700": ideal, **times, "same_bits": same}


def _works(
    x: Tensor, weights: list[Tensor], y: Tensor, *, forward: bool, count: int, capacity: int, used: Tensor
) -> dict[str, Work]:
    def turns(one: Callable[[Tensor], object]) -> Work:
        return lambda: [one(weight) for weight in weights]

    def oriented(weight: Tensor) -> Tensor:
        return weight.T if forward else weight

    def ours(**options: Any) -> Work:
        return turns(lambda weight: product(x, weight, y, forward=forward, **options))

    some, part = x[:count], y[:count]
    works = {
        "blas": turns(lambda weight: torch.mm(some, oriented(weight), out=part)),
        "blas_adding": turns(lambda weight: part.addmm_(some, oriented(weight))),
        "ours": turns(lambda w: product(some, w, part, forward=forward, like_rows=count, used=None)),
        "used": ours(like_rows=count, used=used),
        "used_tiles_of_capacity": ours(like_rows=capacity, used=used),
    }
    for columns in (256, 128, 64):
        works[f"used_{columns}"] = turns(
            lambda weight, columns=columns: hopper_product(
                x, weight, y, parts=(), s_PTC=None, rank_pass=None, forward=forward, columns=columns, used=used
            )
        )
    return works


def main() -> None:
    """Measure, print, write; each linear as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", choices=sorted(SHAPES), nargs="+", default=["gate+up", "down", "o", "qkv"])
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[128, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048]
    )
    parser.add_argument("--capacity", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=RESULTS / "products_by_rows.json")
    options = parser.parse_args()
    need_gpu(hopper=True)
    found: list[dict[str, Any]] = []
    for shape in options.shapes:
        for forward in (True, False):
            for row in rows_of(shape, forward=forward, counts=options.rows, capacity=options.capacity):
                found.append(row)
                print({key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()})
        headline = {
            f"{name}_over_blas_{rows}": sum(row[f"{name}_us"] for row in found if row["rows"] == rows)
            / sum(row["blas_us"] for row in found if row["rows"] == rows)
            for rows in options.rows
            for name in ("used", "used_tiles_of_capacity")
        }
        write_result(options.out, question=QUESTION, headline=headline, rows=found)
    print_table(found, columns=[*found[0]])


if __name__ == "__main__":
    main()
