"""How much does a pack of adapters add to the frozen linear, and what do others add?

``python -m benchmarks.kernels.packed_linear [--result FILE] [--quick] [--rows "k or v:2048:1" ...]``: every linear of
Llama-3.1-8B, 2048 to 16384 rows, 1 to 32 adapters of mixed ranks, forward + backward by CUDA-graph replay over the
frozen product's forward + dX. All columns take turns in blocks, so that each is timed at the clocks it settles at.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.adapter_packs import LINEARS, MIXED_RANKS, Pack, build_pack, uneven_lengths
from benchmarks.kernels.linear_peers import PEERS, peft_one_by_one
from benchmarks.measure import (
    RESULTS,
    copy_ceiling,
    interleaved,
    matrix_ceiling,
    median_eager,
    print_table,
    write_result,
)
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear import triton as kernels

QUESTION = "How much does a pack of adapters add to the frozen linear, and what do its peers add?"
SHAPES = {**LINEARS, "k or v": (4096, (1024,)), "gate or up": (4096, (14336,))}
ROWS = (8192, 2048, 4096, 16384)
ADAPTERS = (1, 2, 4, 8, 16, 32)
COLUMNS = ("linear", "rows", "adapters", "frozen_ms", "ours", "floor", *PEERS, "peft", "error")


def _ours(pack: Pack) -> Any:
    arguments: dict[str, Any] = {"frozen": pack.frozen, "parts": pack.parts, "tables": pack.tables, "row_keys_T": None}

    def work() -> tuple[torch.Tensor, torch.Tensor | None]:
        y, s = kernels.grouped_forward(pack.x_TK, room=pack.room, **arguments)
        return y, kernels.grouped_backward(pack.dy_TN, x_TK=pack.x_TK, s_PTC=s, **arguments)

    return work


def _floor_ms(pack: Pack, *, tb_per_s: float, frozen_ms: float) -> float:
    """Frozen products plus X twice, dY once and what must be written on top of nothing else: the bytes no fusion of
    separate products can avoid (X for S and for dA, dY for dS and dB; Y and dX are written by the products).
    """
    bytes_moved = 2 * (2 * pack.x_TK.numel() + pack.dy_TN.numel())
    return frozen_ms + bytes_moved / tb_per_s / 1e9


def _pack(name: str, rows: int, adapters: int) -> Pack:
    in_features, out_widths = SHAPES[name]
    torch.manual_seed(0)
    ranks = [MIXED_RANKS[(i + 1) % len(MIXED_RANKS)] for i in range(adapters)]
    return build_pack(in_features, out_widths, lengths=uneven_lengths(rows, adapters), ranks=ranks)


def _measure(name: str, rows: int, adapters: int, *, tb_per_s: float, with_peft: bool) -> dict[str, Any]:
    pack = _pack(name, rows, adapters)
    row: dict[str, Any] = {"linear": name, "rows": rows, "adapters": adapters}
    y, dx = _ours(pack)()
    wanted_y, wanted_dx = PEERS["loop"](pack)()  # type: ignore[misc]
    row["error"] = max(float((a - b).norm() / b.norm()) for a, b in ((y.float(), wanted_y), (dx.float(), wanted_dx)))
    if not row["error"] < 1e-2:
        raise SystemExit(f"{name}: relative error {row['error']:.2e} against the loop; no timing of wrong results")
    del y, dx, wanted_y, wanted_dx
    works: dict[str, Callable[[], object]] = {
        "frozen": lambda: (pack.frozen.forward(pack.x_TK), pack.frozen.grad_input(pack.dy_TN)),
        "ours": _ours(pack),
    }
    for peer, make in PEERS.items():
        try:
            work = make(pack)
            work()
            works[peer] = work
        except (RuntimeError, AttributeError) as error:
            row[f"{peer}_failed"] = str(error)[:100]
    headline = rows == 8192 and adapters == 16 and name in LINEARS
    rounds, seconds = (8, 0.06) if headline else (3, 0.012)
    for column, (ms, ratio) in interleaved(works, baseline="frozen", rounds=rounds, block_seconds=seconds).items():
        row[f"{column}_ms"], row[column] = ms, ratio
    if with_peft:
        row["peft_ms"] = median_eager(peft_one_by_one(pack), budget_seconds=0.15)
        row["peft"] = row["peft_ms"] / row["frozen_ms"]
    frozen_ms = row["frozen_ms"]
    row["floor"] = _floor_ms(pack, tb_per_s=tb_per_s, frozen_ms=frozen_ms) / frozen_ms
    return row


def _compile(row: tuple[str, int, int]) -> None:
    """Fill Triton's disk cache with the kernels of one row: widths, rows and adapters decide which they are."""
    _ours(_pack(*row))()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _compile_all(rows: list[tuple[str, int, int]]) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 4) - 1), mp_context=context) as pool:
        list(pool.map(_compile, rows))


def _wanted(options: argparse.Namespace) -> list[tuple[str, int, int]]:
    """The rows of the table to measure: (linear, rows, adapters)."""
    every = [(name, rows, adapters) for rows in ROWS for name in SHAPES for adapters in ADAPTERS]
    if options.quick:
        return [row for row in every if row[1] == 8192 and row[2] in (1, 4, 16)]
    if options.rows is None:
        return every
    named = {f"{name}:{rows}:{adapters}": (name, rows, adapters) for name, rows, adapters in every}
    unknown = [name for name in options.rows if name not in named]
    if unknown:
        raise SystemExit(f"--rows: no row is called {', '.join(unknown)}; one is called {next(iter(named))}")
    return [named[name] for name in options.rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path, default=None, help="default: the committed file, for the whole table")
    parser.add_argument("--quick", action="store_true", help="8192 rows and 1, 4 and 16 adapters alone")
    parser.add_argument("--rows", nargs="+", default=None, metavar="LINEAR:ROWS:ADAPTERS", help="these rows alone")
    options = parser.parse_args()
    need_gpu()
    wanted = _wanted(options)
    if options.result is None and options.rows is not None:
        parser.error("--rows measures a part of the table: name another file with --result")
    path = options.result or RESULTS / "packed_linear.json"
    _compile_all(wanted)
    tb_per_s, tflops = copy_ceiling(), matrix_ceiling()
    notes = {"copy_tb_per_s": tb_per_s, "matrix_tflop_per_s": tflops}
    rows: list[dict[str, Any]] = []
    for name, num_rows, adapters in wanted:
        peft = num_rows == 8192 and adapters in (1, 16)
        rows.append(_measure(name, num_rows, adapters, tb_per_s=tb_per_s, with_peft=peft))
        torch.cuda.empty_cache()
        # written as it grows: what was measured is not lost when the machine is
        write_result(path, question=QUESTION, headline=_headline(rows), rows=rows, notes=notes)
    print_table(rows, columns=COLUMNS)
    print(_headline(rows))


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    headline = {
        f"linear_{row['linear']}_16": row["ours"]
        for row in rows
        if row["rows"] == 8192 and row["adapters"] == 16 and row["linear"] in LINEARS
    }
    lead = [min(row[peer] for peer in PEERS if peer in row) / row["ours"] for row in rows]
    headline["least_lead_over_the_best_peer"] = min(lead)
    return headline


if __name__ == "__main__":
    main()
