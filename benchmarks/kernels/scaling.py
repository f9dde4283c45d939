"""Do 32 adapters in one launch take the time of one? LoRA products alone, packed against one adapter after the other.

``python -m benchmarks.kernels.scaling [--result FILE]``: rank 64, widths 2048, 4096 and 14336, 64, 200 and 1024 tokens
an adapter, 2 to 32 adapters, eager and by graph replay. Two sequential columns: the same kernels one adapter at a time,
and plain torch products one adapter at a time. The floor is the bytes that must move at the measured copy rate.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.adapter_packs import Pack, build_pack
from benchmarks.measure import RESULTS, copy_ceiling, median_eager, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear.launch import launches as kernels
from cohort.kernels.packed_linear.triton import tiles_for

QUESTION = "Do 32 adapters' LoRA products in shared launches take the time of one adapter's?"
WIDTHS = (2048, 4096, 14336)
TOKENS = (200, 64, 1024)
ADAPTERS = (2, 4, 8, 16, 32)
RANK = 64


def _products(pack: Pack) -> Callable[[], object]:
    """Forward and backward of the LoRA terms alone: no frozen product."""
    tables, parts, x, dy = pack.tables, pack.parts, pack.x_TK, pack.dy_TN
    tiles, rank_pass = tiles_for(x, parts), pack.tables.passes[0]

    def work() -> tuple[Tensor, Tensor]:
        s = x.new_empty(1, x.shape[0], tables.num_columns)
        y, dx = torch.empty_like(dy), torch.empty_like(x)
        kernels.shrink(x, parts, s, rank_pass, tables=tables, row_keys_T=None, tiles=tiles)
        kernels.expand(y, parts, s, rank_pass, tables=tables, tiles=tiles, add=False)
        if tiles.ds_apart:
            ds = kernels.output_side_ds(dy, parts, rank_pass, tables=tables, tiles=tiles)
            kernels.output_side(dy, parts, s, rank_pass, tables=tables, tiles=tiles, with_ds=False)
        else:
            ds = kernels.output_side(dy, parts, s, rank_pass, tables=tables, tiles=tiles)
        kernels.input_side(x, dx, parts, ds, rank_pass, tables=tables, row_keys_T=None, tiles=tiles, add=False)
        return y, dx

    return work


def _torch_products(pack: Pack) -> Callable[[], object]:
    part, x, dy = pack.parts[0], pack.x_TK, pack.dy_TN
    assert part.grad_a_RK is not None and part.grad_b_RN is not None, "benchmark packs have sinks"  # noqa: PT018
    a, b, grad_a, grad_b = part.a_RK, part.b_RN, part.grad_a_RK, part.grad_b_RN

    def work() -> tuple[Tensor, Tensor]:
        s = x @ a.T
        y = (s @ b) * 2.0
        ds = (dy @ b.T) * 2.0
        grad_b.add_(s.T @ dy, alpha=2.0)
        grad_a.add_(ds.T @ x)
        return y, ds @ a

    return work


def _floor_ms(rows: int, width: int, adapters: int, tb_per_s: float) -> float:
    """X read twice, dY once, Y and dX written, factors read twice, float32 sinks written."""
    streams = 2 * 5 * rows * width
    factors = adapters * RANK * 2 * width * (2 * 2 + 4)
    return (streams + factors) / tb_per_s / 1e9


def _measure(width: int, tokens: int, *, tb_per_s: float) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    solo = [build_pack(width, (width,), lengths=[tokens], ranks=[RANK]) for _ in range(max(ADAPTERS))]
    own, plain = [_products(pack) for pack in solo], [_torch_products(pack) for pack in solo]
    rows = []
    for adapters in ADAPTERS:
        pack = build_pack(width, (width,), lengths=[tokens] * adapters, ranks=[RANK] * adapters)
        packed = _products(pack)
        row: dict[str, Any] = {"width": width, "tokens": tokens, "adapters": adapters}
        for mode, median in (("eager", median_eager), ("replay", median_replay)):
            row[f"{mode}_ms"] = median(packed, budget_seconds=0.08)
            for name, works in (("own", own), ("torch", plain)):

                def sequential(works: list[Callable[[], object]] = works[:adapters]) -> None:
                    for work in works:
                        work()

                row[f"{mode}_{name}_ms"] = median(sequential, budget_seconds=0.08)
                row[f"{mode}_{name}"] = row[f"{mode}_{name}_ms"] / row[f"{mode}_ms"]
        row["floor_ms"] = _floor_ms(tokens * adapters, width, adapters, tb_per_s)
        rows.append(row)
    return rows


def _compile(row: tuple[int, int, int]) -> None:
    """Fill Triton's disk cache with the kernels of one row: width, tokens and adapters decide which they are."""
    width, tokens, adapters = row
    _products(build_pack(width, (width,), lengths=[tokens] * adapters, ranks=[RANK] * adapters))()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _compile_all() -> None:
    rows = list(itertools.product(WIDTHS, TOKENS, (1, *ADAPTERS)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 4) - 1), mp_context=context) as pool:
        list(pool.map(_compile, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path, default=RESULTS / "scaling.json")
    options = parser.parse_args()
    need_gpu()
    _compile_all()
    tb_per_s = copy_ceiling()
    rows: list[dict[str, Any]] = []
    for tokens in TOKENS:
        for width in WIDTHS:
            rows += _measure(width, tokens, tb_per_s=tb_per_s)
            torch.cuda.empty_cache()
        write_result(
            options.result, question=QUESTION, headline=_headline(rows), rows=rows, notes={"copy_tb_per_s": tb_per_s}
        )
    columns = ("width", "tokens", "adapters", "floor_ms", "eager_ms", "eager_own", "eager_torch", "replay_ms")
    print_table(rows, columns=(*columns, "replay_own", "replay_torch"))
    print(_headline(rows))


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    at_200 = [row for row in rows if row["adapters"] == 32 and row["tokens"] == 200]
    headline = {"kernel_scaling_32": min(row["eager_own"] for row in at_200)}
    for row in at_200:
        headline[f"kernel_scaling_32_width_{row['width']}"] = row["eager_own"]
        headline[f"kernel_scaling_32_width_{row['width']}_over_torch"] = row["eager_torch"]
        headline[f"kernel_scaling_32_width_{row['width']}_replay"] = row["replay_own"]
    return headline


if __name__ == "__main__":
    main()
