"""Which tiles and which place of the LoRA term are fastest for each linear? Writes the packed linear's table of tiles.

``python -m benchmarks.kernels.gpu_variants_packed_linear RESULT.json [--linears qkv o] [--rows 8192] [--adapters 16]
[--table measured_tiles.json]``. Candidates take turns with the frozen product in one loop and are compared by the
median of their ratios: times taken apart drift by more than what is looked for.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.adapter_packs import LINEARS, MIXED_RANKS, Pack, build_pack, uneven_lengths
from benchmarks.kernels.linear_peers import loop
from benchmarks.measure import copy_ceiling, interleaved, matrix_ceiling, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice, choose_tiles
from cohort.kernels.packed_linear.hopper.launch import hopper_product
from cohort.kernels.packed_linear.launch import launches

__all__ = ["Work", "intermediates", "piece_work", "relative_error", "weight_gradients", "whole_work"]

QUESTION = "Which tiles and which place of the LoRA term are fastest for each linear of Llama-3.1-8B?"
Work = Callable[[], object]


def _settings(names: str, *values: tuple[int, ...]) -> list[dict[str, int]]:
    return [dict(zip(names.split(), row, strict=True)) for row in values]


VARIANTS: dict[str, list[dict[str, int]]] = {
    "shrink": _settings(
        "shrink_block shrink_splits shrink_warps shrink_stages",
        (64, 1, 4, 4), (64, 1, 4, 6), (128, 1, 4, 4), (64, 2, 4, 4), (64, 2, 4, 6), (128, 2, 4, 3), (64, 1, 8, 6),
    ),
    "ds": _settings(
        "ds_block ds_splits ds_warps ds_stages",
        (64, 1, 4, 4), (64, 1, 4, 6), (128, 1, 4, 4), (64, 2, 4, 4), (64, 2, 4, 6), (128, 2, 4, 3), (64, 4, 4, 4),
    ),
    "expand": _settings(
        "expand_block expand_strip expand_warps expand_stages",
        (128, 128, 4, 1), (128, 512, 4, 3), (128, 1024, 4, 3), (128, 2048, 4, 3), (256, 1024, 4, 2), (256, 1024, 8, 3),
        (128, 1024, 4, 4), (64, 1024, 4, 4),
    ),
    "output": _settings(
        "output_rows output_block output_warps output_stages",
        (64, 512, 8, 2), (64, 256, 8, 3), (128, 256, 8, 2), (64, 256, 8, 2), (32, 512, 8, 3),
    ),
    "db": _settings(
        "output_rows output_block output_warps output_stages",
        (64, 128, 4, 4), (64, 256, 8, 3), (64, 128, 4, 3), (32, 256, 4, 4), (128, 128, 8, 3), (64, 256, 8, 4),
    ),
    "da": _settings(
        "da_rows da_block da_warps da_stages",
        (64, 128, 4, 4), (64, 128, 8, 3), (64, 64, 4, 3), (32, 128, 4, 4), (32, 128, 4, 3), (32, 128, 8, 3),
        (32, 64, 4, 4),
    ),
    "da and dx": _settings(
        "input_rows input_block input_warps input_stages",
        (64, 128, 4, 3), (64, 128, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (32, 128, 4, 4), (32, 128, 8, 3),
        (32, 128, 8, 4),
        (32, 64, 4, 3),
    ),
    # the product for Hopper knows its tiles; on another GPU these fail and are left out
    "forward": [{}],
    "dx": [{}],
}  # fmt: skip
INSIDE, BEFORE, AUGMENTED = TermPlace.INSIDE, TermPlace.BEFORE, TermPlace.AUGMENTED
AUGMENTED_LIMITS = ("augmented_columns", "augmented_rows")
# what the whole linear tries: (forward, backward, dS apart)
WHOLES = {
    "before before": (BEFORE, BEFORE, False),
    "before before apart": (BEFORE, BEFORE, True),
    "inside before apart": (INSIDE, BEFORE, True),
    "before inside apart": (BEFORE, INSIDE, True),
    "inside inside apart": (INSIDE, INSIDE, True),
    "augmented before apart": (AUGMENTED, BEFORE, True),
}


def intermediates(pack: Pack) -> tuple[Tensor, Tensor]:
    """S, and dS with its scale, by plain products."""
    shape = (len(pack.parts), pack.x_TK.shape[0], pack.tables.num_columns)
    s, ds = (torch.zeros(shape, device=pack.x_TK.device, dtype=pack.x_TK.dtype) for _ in range(2))
    for index, part in enumerate(pack.parts):
        for slot, rank in enumerate(pack.slots.ranks):
            rows, ranks, scale = pack.segments.rows(slot), pack.slots.rank_rows(slot), pack.slots.scales[slot]
            s[index, rows, :rank] = pack.x_TK[rows] @ part.a_RK[ranks].T
            ds[index, rows, :rank] = (pack.dy_TN[rows, part.columns] @ part.b_RN[ranks].T) * scale
    return s, ds


def weight_gradients(pack: Pack) -> list[Tensor]:
    """DA and dB of every part by plain products."""
    s, ds = intermediates(pack)
    made: list[Tensor] = []
    for index, part in enumerate(pack.parts):
        grad_a, grad_b = (torch.zeros(factor.shape, device=s.device) for factor in (part.a_RK, part.b_RN))
        for slot, rank in enumerate(pack.slots.ranks):
            rows, ranks = pack.segments.rows(slot), pack.slots.rank_rows(slot)
            grad_a[ranks] = (ds[index, rows, :rank].T @ pack.x_TK[rows]).float()
            grad_b[ranks] = (s[index, rows, :rank].T @ pack.dy_TN[rows, part.columns]).float() * pack.slots.scales[slot]
        made += [grad_a, grad_b]
    return made


def piece_work(pack: Pack, piece: str, tiles: TileChoice, s: Tensor, ds: Tensor) -> Work:
    """One piece of the linear; whatever it makes is returned."""
    tables, parts, x, dy, rank_pass = pack.tables, pack.parts, pack.x_TK, pack.dy_TN, pack.tables.passes[0]
    if piece == "shrink":
        out = torch.empty_like(s)
        return lambda: launches.shrink(x, parts, out, rank_pass, tables=tables, row_keys_T=None, tiles=tiles)
    if piece == "expand":
        y = torch.empty_like(dy)
        return lambda: launches.expand(y, parts, s, rank_pass, tables=tables, tiles=tiles, add=False)
    if piece == "ds":
        return lambda: launches.output_side_ds(dy, parts, rank_pass, tables=tables, tiles=tiles)
    if piece in ("output", "db"):
        with_ds = piece == "output"
        return lambda: launches.output_side(dy, parts, s, rank_pass, tables=tables, tiles=tiles, with_ds=with_ds)
    if piece.startswith("da"):
        dx = torch.empty_like(x) if piece == "da and dx" else None
        return lambda: launches.input_side(
            x, dx, parts, ds, rank_pass, tables=tables, row_keys_T=None, tiles=tiles, add=False
        )
    forward = piece == "forward"
    out, weight = torch.empty_like(dy if forward else x), pack.frozen.plain_weight_NK
    assert weight is not None, "benchmark packs have plain weights"
    return lambda: hopper_product(
        x if forward else dy, weight, out, parts=parts, s_PTC=s if forward else ds, rank_pass=rank_pass, forward=forward
    )


def _beside_the_products(pack: Pack, piece: str, s: Tensor) -> dict[str, Work]:
    """The frozen product alone and with the term before it, as what the product of our own has to beat."""
    x, dy, frozen, tables = pack.x_TK, pack.dy_TN, pack.frozen, pack.tables
    y, dx = torch.randn_like(dy), torch.randn_like(x)
    if piece == "dx":
        return {"frozen": lambda: frozen.grad_input(dy), "frozen, adding": lambda: frozen.add_grad_input(dy, dx)}

    def before() -> None:
        launches.expand(y, pack.parts, s, tables.passes[0], tables=tables, tiles=TileChoice(), add=False)
        frozen.add_forward(x, y)

    return {"frozen": lambda: frozen.forward(x), "expand, frozen adding": before}


def _compile(task: tuple[int, str, dict[str, int], int]) -> str | None:
    """Fill Triton's disk cache for one variant; return what went wrong."""
    num_parts, piece, change, max_rank = task
    torch.manual_seed(0)
    small = build_pack(1024, [1024] * num_parts, lengths=[96, 160], ranks=[8, max_rank])
    try:
        piece_work(small, piece, TileChoice(**change), *intermediates(small))()
        torch.cuda.synchronize()
    except Exception as error:  # a variant that does not compile is a result, not a failure
        return f"{num_parts} parts {piece} {change}: {type(error).__name__}: {str(error)[:120]}"
    return None


def _compile_all(linears: list[str], *, max_rank: int) -> list[str]:
    counts = sorted({len(LINEARS[name][1]) for name in linears})
    tasks = [(count, piece, change, max_rank) for piece in VARIANTS for change in VARIANTS[piece] for count in counts]
    tasks.sort(key=lambda task: task[1] not in ("forward", "dx"))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 4) - 1), mp_context=context) as pool:
        return [problem for problem in pool.map(_compile, tasks) if problem]


def _pieces(name: str, pack: Pack) -> Iterator[dict[str, Any]]:
    s, ds = intermediates(pack)
    for piece, variants in VARIANTS.items():
        works: dict[str, Work] = {}
        settings: dict[str, dict[str, int]] = {}
        if piece in ("forward", "dx"):
            works.update(_beside_the_products(pack, piece, s))
        for change in variants:
            label = " ".join(map(str, change.values())) or "ours"
            try:
                work = piece_work(pack, piece, TileChoice(**change), s, ds)
                work()
                torch.cuda.synchronize()
            except Exception as error:
                yield {"linear": name, "piece": piece, "variant": label, "failed": str(error)[:100]}
                continue
            works[label], settings[label] = work, change
        product = piece in ("forward", "dx")
        measured = interleaved(
            works, baseline=next(iter(works)), rounds=4 if product else 3, block_seconds=0.04 if product else 0.01
        )
        for label, (ms, ratio) in sorted(measured.items(), key=lambda item: item[1][1]):
            row = {"linear": name, "piece": piece, "variant": label, "us": ms * 1e3, "ratio": ratio}
            yield {**row, "settings": settings.get(label)}
        del works


def _wholes(name: str, pack: Pack, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Time forward + backward with the best pieces in each arrangement, over the frozen linear alone."""
    best: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["linear"] == name and row.get("settings"):
            best.setdefault(row["piece"], row["settings"])
    choices: dict[str, TileChoice] = {}
    for label, (forward, backward, apart) in WHOLES.items():
        merged = {**best["shrink"], **best["expand"], **best["ds"], **best["db" if apart else "output"]}
        merged.update({**best["da"], **best["da and dx"]})
        choices[label] = TileChoice(**merged, term_forward=forward, term_backward=backward, ds_apart=apart)
    wanted_y, wanted_dx = loop(pack)()
    works: dict[str, Work] = {"frozen": lambda: (pack.frozen.forward(pack.x_TK), pack.frozen.grad_input(pack.dy_TN))}
    for label, tiles in choices.items():
        if tiles.term_forward is AUGMENTED and pack.room is None:
            continue  # siblings, or more rank rows than an augmented product takes
        try:
            y, dx = whole_work(pack, tiles)()
            error = max(relative_error(y, wanted_y), relative_error(dx, wanted_dx))
            del y, dx
        except Exception as problem:
            yield {"linear": name, "piece": "whole", "variant": label, "failed": str(problem)[:100]}
            continue
        if not error < 1e-2:
            raise SystemExit(f"{name} {label}: relative error {error:.2e} against the loop; no timing of wrong results")
        works[label] = whole_work(pack, tiles)
    for label, (ms, ratio) in interleaved(works, baseline="frozen", rounds=6, block_seconds=0.06).items():
        row = {"linear": name, "piece": "whole", "variant": label, "us": ms * 1e3, "ratio": ratio}
        yield {**row, "choice": asdict(choices[label]) if label in choices else None}


def whole_work(pack: Pack, tiles: TileChoice) -> Callable[[], tuple[Tensor, Tensor]]:
    arguments: dict[str, Any] = {
        "frozen": pack.frozen, "parts": pack.parts, "tables": pack.tables, "row_keys_T": None, "tiles": tiles,
    }  # fmt: skip

    room = pack.room if tiles.term_forward is AUGMENTED else None

    def work() -> tuple[Tensor, Tensor]:
        y, s = grouped.grouped_forward(pack.x_TK, room=room, **arguments)
        dx = grouped.grouped_backward(pack.dy_TN, x_TK=pack.x_TK, s_PTC=s, **arguments)
        assert dx is not None
        return y, dx

    return work


def relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--linears", nargs="+", default=list(LINEARS), choices=list(LINEARS))
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--rank", type=int, default=None, help="one rank for all adapters instead of 8 to 64")
    parser.add_argument("--table", type=Path, default=None, help="also write the best choices as a table of tiles")
    options = parser.parse_args()
    need_gpu()
    ranks = [options.rank or MIXED_RANKS[i % len(MIXED_RANKS)] for i in range(options.adapters)]
    started = time.perf_counter()
    problems = _compile_all(options.linears, max_rank=max(ranks))
    print(f"compiled in {time.perf_counter() - started:.0f} s; {len(problems)} variants failed", flush=True)
    print("\n".join(problems))
    notes = {"copy_tb_per_s": copy_ceiling(), "matrix_tflop_per_s": matrix_ceiling(), "not_compiled": problems}
    rows: list[dict[str, Any]] = []
    for name in options.linears:
        in_features, out_widths = LINEARS[name]
        torch.manual_seed(0)
        pack = build_pack(in_features, out_widths, lengths=uneven_lengths(options.rows, options.adapters), ranks=ranks)
        rows += _pieces(name, pack)
        rows += _wholes(name, pack, rows)
        print(f"{name} done at {time.perf_counter() - started:.0f} s", flush=True)
        write_result(options.result, question=QUESTION, headline=_headline(rows), rows=rows, notes=notes)
        del pack
        torch.cuda.empty_cache()
    if options.table is not None:
        _write_table(options.table, rows)
    print_table(rows, columns=("linear", "piece", "variant", "us", "ratio", "failed"))
    print({key: round(value, 3) for key, value in notes.items() if isinstance(value, float)})
    print({key: round(value, 4) for key, value in _headline(rows).items()})


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the best whole of each linear as ``cohort.kernels.packed_linear.choice.tiles`` reads it."""
    defaults = asdict(TileChoice())
    table = []
    for name in dict.fromkeys(row["linear"] for row in rows):
        wholes = [row for row in rows if row["linear"] == name and row.get("choice")]
        best = min(wholes, key=lambda row: row["ratio"])
        in_features, out_widths = LINEARS[name]
        now = choose_tiles(
            torch.cuda.get_device_name(0), in_features=in_features, out_widths=out_widths, num_rows=1 << 30
        )
        if now.term_forward is AUGMENTED and best["choice"]["term_forward"] is BEFORE:
            # it pays for few rank rows, whatever is best here: augmented_product.py measures when
            best["choice"] |= {key: getattr(now, key) for key in ("term_forward", *AUGMENTED_LIMITS)}
        choice = {key: value for key, value in best["choice"].items() if value != defaults[key]}
        measured = {"ms": best["us"] / 1e3, "over_frozen": best["ratio"]}
        row = {"in_features": in_features, "out_widths": out_widths, "min_rows": 0}
        table.append({**row, "choice": choice, "measured": measured})
    path.write_text(json.dumps({torch.cuda.get_device_name(0): table}, indent=1) + "\n", encoding="utf-8")


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    headline: dict[str, float] = {}
    for row in rows:
        if row.get("choice"):
            key = f"linear_{row['linear']}_16"
            headline[key] = min(headline.get(key, 1e9), row["ratio"])
    return headline


if __name__ == "__main__":
    main()
