"""Which tiles and which order of products are fastest for each linear? Writes the table the packed linear chooses from.

``python benchmarks/gpu_variants_packed_linear.py RESULT.json [--linears qkv o] [--rows 8192] [--adapters 16]
[--table measured_tiles.json]``. Every variant is checked against float32 products before it is timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.adapter_packs import LINEARS, MIXED_RANKS, Pack, build_pack, uneven_lengths
from benchmarks.measure import copy_ceiling, matrix_ceiling, median_replay, print_table, write_result
from benchmarks.triton_product import FUSED_VARIANTS, compile_fused, time_fused
from cohort.kernels.packed_linear import triton as kernels
from cohort.kernels.packed_linear.choice import TileChoice
from cohort.kernels.packed_linear.launch_tables import LaunchTables

QUESTION = "Which tiles and which order of products are fastest for each linear of Llama-3.1-8B?"

SHRINK = [
    {"tile_rows": rows, "shrink_block": block, "shrink_splits": splits, "shrink_warps": warps, "shrink_stages": stages}
    for rows, block, splits, warps, stages in (
        (64, 64, 1, 4, 4), (64, 64, 1, 4, 6), (64, 128, 1, 4, 4), (64, 64, 2, 4, 4), (64, 128, 2, 4, 3),
        (32, 128, 1, 4, 4), (128, 64, 1, 8, 4), (64, 64, 4, 4, 4),
    )
]  # fmt: skip
EXPAND = [
    {"tile_rows": rows, "expand_block": block, "expand_warps": warps}
    for rows, block, warps in ((64, 128, 4), (64, 256, 4), (64, 256, 8), (32, 256, 4), (128, 128, 4), (128, 128, 8))
]
OUTPUT = [
    {"output_rows": rows, "output_block": block, "output_warps": warps, "output_stages": stages}
    for rows, block, warps, stages in (
        (64, 256, 8, 3), (64, 256, 8, 4), (64, 128, 4, 3), (64, 128, 4, 4), (128, 128, 8, 3), (128, 256, 8, 2),
        (64, 512, 8, 2), (32, 256, 4, 4),
    )
]  # fmt: skip
INPUT = [
    {"input_rows": rows, "input_block": block, "input_warps": warps, "input_stages": stages}
    for rows, block, warps, stages in (
        (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 3), (64, 128, 8, 3), (64, 128, 8, 4), (64, 256, 8, 3),
        (128, 64, 4, 3),
        (128, 128, 8, 2),
    )
]  # fmt: skip
STEPS = ("shrink", "expand", "expand_add", "output", "output_separate", "input", "input_add")


def _step(pack: Pack, name: str, tiles: TileChoice) -> tuple[Callable[[], object], Callable[[], float]]:
    """Return the work of one step and its relative error once it has run on poisoned memory."""
    tables = LaunchTables(
        pack.segments, pack.slots, device=pack.x_TK.device, tile_rows=tiles.tile_rows, chunk_rows=tiles.chunk_rows
    )
    rank_pass, x, dy, parts = tables.passes[0], pack.x_TK, pack.dy_TN, pack.parts
    s, ds = _intermediates(pack, tables)
    if name == "shrink":
        out = torch.full_like(s, torch.nan)
        work = lambda: kernels.shrink(x, parts, out, rank_pass, tables=tables, row_keys_T=None, tiles=tiles)  # noqa: E731
        return work, lambda: _ranked_error(pack, out, s)
    if name.startswith("expand"):
        y = torch.zeros_like(dy) if name == "expand_add" else torch.full_like(dy, torch.nan)
        add = name == "expand_add"
        work = lambda: kernels.expand(y, parts, s, rank_pass, tables=tables, tiles=tiles, add=add)  # noqa: E731
        return work, lambda: _error(y, _expanded(pack, s, [part.b_RN for part in parts], pack.slots.scales))
    if name.startswith("output"):
        box: list[torch.Tensor] = []
        separate = name == "output_separate"

        def work() -> None:
            box[:] = [kernels.output_side(dy, parts, s, rank_pass, tables=tables, tiles=tiles, ds_apart=separate)]

        return work, lambda: max(_ranked_error(pack, box[0], ds), _sink_error(pack, s, dy, of_b=True))
    dx = torch.zeros_like(x) if name == "input_add" else torch.full_like(x, torch.nan)
    add = name == "input_add"
    work = lambda: kernels.input_side(  # noqa: E731
        x, dx, parts, ds, rank_pass, tables=tables, row_keys_T=None, tiles=tiles, add=add
    )
    wanted = sum(_expanded(pack, ds[p : p + 1], [part.a_RK], None) for p, part in enumerate(parts))
    return work, lambda: max(_error(dx, wanted), _sink_error(pack, ds, x, of_b=False))


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


def _ranked_error(pack: Pack, found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Error over the true ranks alone: columns past a slot's rank are never read."""
    worst = 0.0
    for slot, rank in enumerate(pack.slots.ranks):
        rows = pack.segments.rows(slot)
        worst = max(worst, _error(found[:, rows, :rank], wanted[:, rows, :rank].float()))
    return worst


def _intermediates(pack: Pack, tables: LaunchTables) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (len(pack.parts), pack.x_TK.shape[0], tables.num_columns)
    s, ds = (torch.zeros(shape, device=pack.x_TK.device, dtype=pack.x_TK.dtype) for _ in range(2))
    for index, part in enumerate(pack.parts):
        for slot, rank in enumerate(pack.slots.ranks):
            rows, ranks = pack.segments.rows(slot), pack.slots.rank_rows(slot)
            s[index, rows, :rank] = pack.x_TK[rows] @ part.a_RK[ranks].T
            ds[index, rows, :rank] = (pack.dy_TN[rows, part.columns] @ part.b_RN[ranks].T) * pack.slots.scales[slot]
    return s, ds


def _expanded(
    pack: Pack, s: torch.Tensor, factors: list[torch.Tensor], scales: tuple[float, ...] | None
) -> torch.Tensor:
    out = []
    for index, factor in enumerate(factors):
        rows = []
        for slot, rank in enumerate(pack.slots.ranks):
            product = s[index, pack.segments.rows(slot), :rank].float() @ factor[pack.slots.rank_rows(slot)].float()
            rows.append(product * (scales[slot] if scales else 1.0))
        out.append(torch.cat(rows))
    return torch.cat(out, dim=1)


def _sink_error(pack: Pack, s: torch.Tensor, data: torch.Tensor, *, of_b: bool) -> float:
    worst = 0.0
    for index, part in enumerate(pack.parts):
        sink = part.grad_b_RN if of_b else part.grad_a_RK
        assert sink is not None
        for slot, rank in enumerate(pack.slots.ranks):
            rows = pack.segments.rows(slot)
            columns = data[rows, part.columns] if of_b else data[rows]
            scale = pack.slots.scales[slot] if of_b else 1.0
            wanted = s[index, rows, :rank].float().T @ columns.float() * scale
            worst = max(worst, _error(sink[pack.slots.rank_rows(slot)], wanted))
    return worst


def _variants(step: str) -> list[dict[str, int]]:
    return {"shrink": SHRINK, "expand": EXPAND, "output": OUTPUT, "input": INPUT}[step.split("_")[0]]


def _compile(task: tuple[str, str, dict[str, int], int]) -> str | None:
    """Fill Triton's disk cache for one variant; return what went wrong."""
    name, step, change, max_rank = task
    torch.manual_seed(0)
    if step == "fused":
        return compile_fused(change)
    out_widths = LINEARS[name][1]
    small = build_pack(
        1024, [1024] * len(out_widths), lengths=[96, 160], ranks=[8, max_rank], tile_rows=change.get("tile_rows", 64)
    )
    try:
        _step(small, step, TileChoice(**change))[0]()
        torch.cuda.synchronize()
    except Exception as error:  # a variant that does not compile is a result, not a failure
        return f"{name} {step} {change}: {type(error).__name__}: {str(error)[:120]}"
    return None


def _compile_all(linears: list[str], steps: list[str], *, max_rank: int, fused: bool) -> list[str]:
    by_parts = {len(LINEARS[name][1]): name for name in linears}
    tasks = [
        (name, step, change, max_rank) for name in by_parts.values() for step in steps for change in _variants(step)
    ]
    if fused:
        tasks += [("", "fused", {"index": index}, 0) for index in range(len(FUSED_VARIANTS))]
    tasks.sort(key=lambda task: task[1] != "fused")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 4) - 2), mp_context=context) as pool:
        return [problem for problem in pool.map(_compile, tasks) if problem]


def _time_steps(name: str, pack: Pack, steps: list[str]) -> list[dict[str, Any]]:
    rows = []
    for step in steps:
        for change in _variants(step):
            row: dict[str, Any] = {"linear": name, "step": step, **change}
            try:
                work, error = _step(pack, step, replace(TileChoice(), **change))
                pack.zero_sinks()
                work()
                row["error"] = error()
                row["ms"] = median_replay(work, budget_seconds=0.05) if row["error"] < 1e-2 else None
            except Exception as error_:  # recorded, not raised: the other variants still count
                row["failed"] = f"{type(error_).__name__}: {str(error_)[:100]}"
            rows.append(row)
    return rows


def _time_frozen(name: str, pack: Pack) -> list[dict[str, Any]]:
    x, dy, frozen = pack.x_TK, pack.dy_TN, pack.frozen
    y, dx = torch.randn_like(dy), torch.randn_like(x)
    works: dict[str, Callable[[], object]] = {
        "frozen_forward": lambda: frozen.forward(x),
        "frozen_dx": lambda: frozen.grad_input(dy),
        "frozen_add_forward": lambda: frozen.add_forward(x, y),
        "frozen_add_dx": lambda: frozen.add_grad_input(dy, dx),
        "frozen_both": lambda: (frozen.forward(x), frozen.grad_input(dy)),
    }
    rows = []
    for step, work in works.items():
        y.normal_()
        dx.normal_()
        rows.append({"linear": name, "step": step, "ms": median_replay(work, budget_seconds=0.1)})
    return rows


def _best(rows: list[dict[str, Any]], name: str, step: str, **fixed: int) -> dict[str, Any] | None:
    timed = [
        row
        for row in rows
        if row["linear"] == name
        and row["step"] == step
        and row.get("ms")
        and all(row.get(k) == v for k, v in fixed.items())
    ]
    return min(timed, key=lambda row: row["ms"]) if timed else None


def _settings(row: dict[str, Any]) -> dict[str, int]:
    return {
        key: value for key, value in row.items() if key not in ("linear", "step", "ms", "error", "failed", "tile_rows")
    }


def _time_whole(name: str, pack: Pack, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Time forward + backward with the best steps, in each order of products, over the frozen linear alone."""
    best: dict[str, int] = {}
    for step in ("shrink", "expand", "output", "input"):
        fixed = {"tile_rows": 64} if step in ("shrink", "expand") else {}
        row = _best(rows, name, step, **fixed)
        best.update(_settings(row) if row else {})
    base = _best(rows, name, "frozen_both")
    out = []
    for forward_first in (True, False):
        for backward_first in (True, False):
            tiles = TileChoice(**best, lora_first_forward=forward_first, lora_first_backward=backward_first)

            def work(tiles: TileChoice = tiles) -> None:
                arguments = {"frozen": pack.frozen, "parts": pack.parts, "tables": pack.tables, "row_keys_T": None}
                _, s = kernels.grouped_forward(pack.x_TK, tiles=tiles, **arguments)
                kernels.grouped_backward(pack.dy_TN, x_TK=pack.x_TK, s_PTC=s, tiles=tiles, **arguments)

            ms = median_replay(work, budget_seconds=0.3)
            out.append(
                {
                    "linear": name,
                    "step": f"whole_{'first' if forward_first else 'after'}_{'first' if backward_first else 'after'}",
                    "ms": ms,
                    "ratio": ms / base["ms"] if base else None,
                    "choice": asdict(tiles),
                }
            )
    return out


def _time_overlap(name: str, pack: Pack) -> list[dict[str, Any]]:
    """The kernel over X beside the frozen dX on a second stream, against one after the other."""
    tables, x, dy = pack.tables, pack.x_TK, pack.dy_TN
    _, ds = _intermediates(pack, tables)
    side = torch.cuda.Stream()
    tiles, rank_pass = TileChoice(), tables.passes[0]

    def weight_gradient() -> None:
        kernels.input_side(x, None, pack.parts, ds, rank_pass, tables=tables, row_keys_T=None, tiles=tiles, add=True)

    def beside() -> None:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            weight_gradient()
        pack.frozen.grad_input(dy)
        main.wait_stream(side)

    def after() -> None:
        weight_gradient()
        pack.frozen.grad_input(dy)

    return [
        {"linear": name, "step": f"da_{work.__name__}_dx", "ms": median_replay(work, budget_seconds=0.1)}
        for work in (beside, after)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--linears", nargs="+", default=list(LINEARS), choices=list(LINEARS))
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument(
        "--row-stride", type=int, default=None, help="entries from one rank row to the next, as in a bank"
    )
    parser.add_argument(
        "--table", type=Path, default=None, help="also write the best choices as a table of measured tiles"
    )
    parser.add_argument("--no-fused", action="store_true", help="leave out the fused base + LoRA product")
    options = parser.parse_args()
    ranks = [MIXED_RANKS[i % len(MIXED_RANKS)] for i in range(options.adapters)]
    started = time.perf_counter()
    problems = _compile_all(options.linears, options.steps, max_rank=max(ranks), fused=not options.no_fused)
    print(f"compiled in {time.perf_counter() - started:.0f} s; {len(problems)} variants failed", flush=True)
    for problem in problems:
        print("  " + problem)
    notes = {"copy_tb_per_s": copy_ceiling(), "matrix_tflop_per_s": matrix_ceiling(), "not_compiled": problems}
    rows: list[dict[str, Any]] = []
    for name in options.linears:
        in_features, out_widths = LINEARS[name]
        torch.manual_seed(0)
        lengths = uneven_lengths(options.rows, options.adapters)
        pack = build_pack(in_features, out_widths, lengths=lengths, ranks=ranks, row_stride=options.row_stride)
        found = _time_frozen(name, pack) + _time_steps(name, pack, options.steps)
        found += _time_overlap(name, pack)
        if not options.no_fused:
            found += time_fused(name, pack)
        rows += found + _time_whole(name, pack, found)
        print(f"{name} done at {time.perf_counter() - started:.0f} s", flush=True)
        write_result(options.result, question=QUESTION, headline=_headline(rows), rows=rows, notes=notes)
        del pack
        torch.cuda.empty_cache()
    if options.table is not None:
        _write_table(options.table, rows)
    _print(options.linears, rows)
    print({key: round(value, 3) for key, value in notes.items() if isinstance(value, float)})
    print({key: round(value, 4) for key, value in _headline(rows).items()})


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the best whole of each linear as ``cohort.kernels.packed_linear.choice`` reads it."""
    defaults = asdict(TileChoice())
    table = []
    for name in dict.fromkeys(row["linear"] for row in rows):
        wholes = [row for row in rows if row["linear"] == name and row["step"].startswith("whole")]
        best = min(wholes, key=lambda row: row["ms"])
        in_features, out_widths = LINEARS[name]
        choice = {key: value for key, value in best["choice"].items() if value != defaults[key]}
        measured = {"ms": best["ms"], "over_frozen": best["ratio"]}
        table.append(
            {
                "in_features": in_features,
                "out_widths": out_widths,
                "min_rows": 0,
                "choice": choice,
                "measured": measured,
            }
        )
    path.write_text(json.dumps({torch.cuda.get_device_name(0): table}, indent=1) + "\n", encoding="utf-8")


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    headline: dict[str, float] = {}
    for row in rows:
        if row["step"].startswith("whole") and row.get("ratio"):
            key = f"linear_{row['linear']}_16"
            headline[key] = min(headline.get(key, 1e9), row["ratio"])
    return headline


def _print(linears: list[str], rows: list[dict[str, Any]]) -> None:
    for name in linears:
        mine = [row for row in rows if row["linear"] == name]
        table = []
        for step in dict.fromkeys(row["step"] for row in mine):
            timed = sorted((r for r in mine if r["step"] == step and r.get("ms")), key=lambda r: r["ms"])
            for row in timed[:2]:
                settings = {
                    k: v for k, v in row.items() if k not in ("linear", "step", "ms", "error", "choice", "ratio")
                }
                text = " ".join(str(value) for value in settings.values())
                table.append(
                    {"step": step, "us": round(row["ms"] * 1e3, 1), "ratio": row.get("ratio", ""), "settings": text}
                )
            failed = [row for row in mine if row["step"] == step and not row.get("ms")]
            if failed:
                table.append(
                    {
                        "step": step,
                        "us": "",
                        "settings": f"{len(failed)} failed: {failed[0].get('failed') or failed[0]}",
                    }
                )
        print(f"\n{name}")
        print_table(table, columns=("step", "us", "ratio", "settings"))


if __name__ == "__main__":
    main()
