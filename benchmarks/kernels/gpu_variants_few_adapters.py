"""Which settings fill a GPU where a stream is short or its adapters are few, and what do 32 short segments need?

``python -m benchmarks.kernels.gpu_variants_few_adapters RESULT [--compile-only | --compiled] [--cases o:2048:1 ..]
[--guards qkv:8192:16 ..] [--widths 2048 ..]``. For each case (linear, rows, adapters): the whole linear under the
settings that ship, under other candidates, and its peers, all taking turns. The guards, without
peers, are what must not lose by it. For each width: the launches of ``scaling.py``'s packed call (32 adapters of rank
64, 200 tokens each) under their candidates, and that call eager against one adapter at a time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.adapter_packs import LINEARS, MIXED_RANKS, Pack, build_pack, uneven_lengths
from benchmarks.kernels.gpu_variants_packed_linear import (
    Work,
    intermediates,
    piece_work,
    relative_error,
    weight_gradients,
    whole_work,
)
from benchmarks.kernels.linear_peers import PEERS, loop
from benchmarks.kernels.packed_linear import SHAPES
from benchmarks.measure import interleaved, median_eager, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.packed_linear.choice.tiles import TileChoice, choose_tiles, shares_of
from cohort.kernels.packed_linear.launch import launches

QUESTION = "Which settings fill the GPU where a stream is short or its adapters are few?"
CASES = (
    "k or v:2048:1", "k or v:2048:2", "k or v:2048:4", "o:2048:1", "o:2048:2", "gate or up:2048:2",
    "gate or up:2048:4", "gate or up:2048:1", "k or v:4096:4", "k or v:4096:2", "o:4096:4", "k or v:16384:1",
    "down:8192:1", "gate or up:16384:1",
)  # fmt: skip
GUARDS = ("qkv:8192:16", "o:8192:16", "gateup:8192:16", "down:8192:16", "qkv:8192:8", "down:8192:8")
WIDTHS = (2048, 4096, 14336)
# at the rows and adapters of the losing rows these two are the fastest peers
CLOSEST_PEERS = ("loop", "concatenated")
REPEATS = 10
Setting = tuple[TileChoice, int]


def _settings(names: str, *values: tuple[int, ...]) -> list[dict[str, int]]:
    return [dict(zip(names.split(), row, strict=True)) for row in values]


_SHRINKS = ((64, 1, 4, 6), (64, 2, 4, 6), (64, 2, 4, 4), (64, 4, 4, 6), (64, 4, 4, 4), (64, 4, 4, 3))
VARIANTS: dict[str, list[dict[str, int]]] = {
    "shrink": _settings("shrink_block shrink_splits shrink_warps shrink_stages", *_SHRINKS),
    "ds": _settings("ds_block ds_splits ds_warps ds_stages", *_SHRINKS),
    "expand": _settings(
        "expand_block expand_strip expand_warps expand_stages", (128, 512, 4, 3), (128, 1024, 4, 3), (128, 2048, 4, 3)
    ),
    "db": _settings(
        "output_rows output_block output_warps output_stages",
        (64, 128, 4, 4), (64, 64, 4, 4), (128, 128, 8, 3), (64, 256, 8, 3),
    ),
    "da and dx": _settings(
        "input_rows input_block input_warps input_stages",
        (64, 128, 4, 3), (64, 128, 8, 3), (64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2),
    ),
}  # fmt: skip
# three siblings share a tile's memory: how deep a pipeline leaves room for two programs a multiprocessor?
SIBLINGS = _settings(
    "shrink_block shrink_splits shrink_warps shrink_stages",
    (64, 1, 4, 6), (64, 1, 4, 3), (64, 2, 4, 6), (64, 2, 4, 3), (64, 4, 4, 6), (64, 4, 4, 3),
)  # fmt: skip


def _case(name: str) -> tuple[str, int, int]:
    linear, rows, adapters = name.split(":")
    return linear, int(rows), int(adapters)


def _ranks(name: str) -> list[int]:
    """Mixed ranks, but 16 for eight adapters: what most people train."""
    adapters = _case(name)[2]
    return [16] * 8 if adapters == 8 else [MIXED_RANKS[(i + 1) % len(MIXED_RANKS)] for i in range(adapters)]


def _widths(linear: str) -> tuple[int, tuple[int, ...]]:
    in_features, out_widths = {**LINEARS, **SHAPES}[linear]
    return in_features, tuple(out_widths)


def _pack(name: str) -> Pack:
    linear, rows, adapters = _case(name)
    in_features, out_widths = _widths(linear)
    torch.manual_seed(0)
    lengths = [rows // 8] * 8 if adapters == 8 else uneven_lengths(rows, adapters)
    return build_pack(in_features, out_widths, lengths=lengths, ranks=_ranks(name))


def _rules(in_features: int, out_widths: tuple[int, ...], rows: int) -> dict[str, Setting]:
    """Settings by name: tiles, and the rows up to which a slot is one chunk."""
    name = torch.cuda.get_device_name(0)
    base = choose_tiles(name, in_features=in_features, out_widths=out_widths, num_rows=rows)
    return {
        "shipped": (base, 1024),
        "no shares": (replace(base, shrink_splits=1, ds_splits=1), 1024),
        "chunks from 512 on": (base, 512),
    }


def _cut(pack: Pack, chunk_rows: int) -> Pack:
    tables = LaunchTables(
        pack.segments, pack.slots, device=pack.x_TK.device, chunk_rows=chunk_rows,
        fresh_slots=range(pack.slots.num_slots),
    )  # fmt: skip
    return replace(pack, tables=tables)


def _changed(base: TileChoice, change: dict[str, int]) -> TileChoice:
    return replace(base, **change)  # type: ignore[arg-type]


def _often(work: Work) -> Work:
    """Repeat a launch within one graph: one node's graph waits for the host."""

    def repeated() -> None:
        for _ in range(REPEATS):
            work()

    return repeated


def _pieces(pack: Pack, base: TileChoice, variants: dict[str, list[dict[str, int]]]) -> Iterator[dict[str, Any]]:
    s, ds = intermediates(pack)
    for piece, changes in variants.items():
        works = {"shipped": _often(piece_work(pack, piece, base, s, ds))}
        for change in changes:
            label = " ".join(map(str, change.values()))
            works[label] = _often(piece_work(pack, piece, _changed(base, change), s, ds))
        for label, (ms, _) in interleaved(works, baseline="shipped", rounds=3, block_seconds=0.006).items():
            yield {"piece": piece, "variant": label, "us": ms * 1e3 / REPEATS}


def _best(rows: list[dict[str, Any]], base: TileChoice) -> TileChoice:
    """Each launch's fastest candidate."""
    change: dict[str, int] = {}
    for piece, variants in VARIANTS.items():
        labels = {" ".join(map(str, variant.values())): variant for variant in variants}
        fastest = min((row for row in rows if row["piece"] == piece), key=lambda row: row["us"])["variant"]
        change.update(labels.get(fastest, {}))
    return _changed(base, change)


def _everything(pack: Pack, work: Callable[[], tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Y, dX and copies of all weight gradients."""
    made = list(work())
    for part in pack.parts:
        assert part.grad_a_RK is not None, "benchmark packs have sinks"
        assert part.grad_b_RN is not None, "benchmark packs have sinks"
        made += [part.grad_a_RK.clone(), part.grad_b_RN.clone()]
    return made


def _wholes(pack: Pack, settings: dict[str, Setting], *, peers: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    wanted = [*loop(pack)(), *weight_gradients(pack)]
    works: dict[str, Work] = {"frozen": lambda: (pack.frozen.forward(pack.x_TK), pack.frozen.grad_input(pack.dy_TN))}
    for label, (tiles, chunk_rows) in settings.items():
        work = whole_work(_cut(pack, chunk_rows), tiles)
        found, again = _everything(pack, work), _everything(pack, work)
        error = max(relative_error(a, b) for a, b in zip(found, wanted, strict=True))
        if not error < 1e-2:
            raise SystemExit(f"{label}: relative error {error:.2e} against plain products; wrong results are not timed")
        if not all(torch.equal(a, b) for a, b in zip(found, again, strict=True)):
            raise SystemExit(f"{label}: a repeat has other bits")
        works[label] = work
    del found, again, wanted
    for peer in peers:
        works[peer] = PEERS[peer](pack)
    for label, (ms, ratio) in interleaved(works, baseline="frozen", rounds=5, block_seconds=0.016).items():
        yield {"piece": "whole", "variant": label, "us": ms * 1e3, "ratio": ratio}


def _segments(width: int, adapters: int = 32) -> Pack:
    torch.manual_seed(0)
    return build_pack(width, (width,), lengths=[200] * adapters, ranks=[64] * adapters)


def _products(pack: Pack, tiles: TileChoice, *, gradient_of_b_last: bool) -> Callable[[], object]:
    """``scaling.py``'s call: forward and backward of the LoRA terms alone."""
    x, dy, tables, parts, rank_pass = pack.x_TK, pack.dy_TN, pack.tables, pack.parts, pack.tables.passes[0]

    def work() -> tuple[Tensor, Tensor]:
        s = x.new_empty(1, x.shape[0], tables.num_columns)
        y, dx = torch.empty_like(dy), torch.empty_like(x)
        launches.shrink(x, parts, s, rank_pass, tables=tables, row_keys_T=None, tiles=tiles)
        launches.expand(y, parts, s, rank_pass, tables=tables, tiles=tiles, add=False)
        ds = launches.output_side_ds(dy, parts, rank_pass, tables=tables, tiles=tiles)
        if not gradient_of_b_last:
            launches.output_side(dy, parts, s, rank_pass, tables=tables, tiles=tiles, with_ds=False)
        launches.input_side(x, dx, parts, ds, rank_pass, tables=tables, row_keys_T=None, tiles=tiles, add=False)
        if gradient_of_b_last:
            launches.output_side(dy, parts, s, rank_pass, tables=tables, tiles=tiles, with_ds=False)
        return y, dx

    return work


def _host_ms(work: Callable[[], object]) -> float:
    """Median milliseconds in which the host has queued one call, with nothing to wait for."""
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)[15]


def _scaling(width: int) -> Iterator[dict[str, Any]]:
    pack = _segments(width)
    rules = _rules(width, (width,), pack.x_TK.shape[0])
    base = rules["shipped"][0]
    rows = list(_pieces(pack, base, VARIANTS))
    yield from rows
    solo = [_segments(width, 1) for _ in range(32)]
    for label, tiles, last in (
        ("no shares", rules["no shares"][0], False), ("shipped", base, False), ("shipped, dB last", base, True),
        ("best", _best(rows, base), False),
    ):  # fmt: skip
        packed = _products(pack, tiles, gradient_of_b_last=last)
        own = [_products(one, tiles, gradient_of_b_last=last) for one in solo]

        def sequential(own: list[Callable[[], object]] = own) -> None:
            for work in own:
                work()

        graph_ms = interleaved({"packed": packed}, baseline="packed", rounds=3, block_seconds=0.016)["packed"][0]
        packed_ms, own_ms = median_eager(packed, budget_seconds=0.12), median_eager(sequential, budget_seconds=0.2)
        yield {
            "piece": "scaling", "variant": label, "us": packed_ms * 1e3, "ratio": own_ms / packed_ms,
            "own_us": own_ms * 1e3, "replay_us": graph_ms * 1e3, "host_us": _host_ms(packed) * 1e3,
            "own_host_us": _host_ms(own[0]) * 1e3,
        }  # fmt: skip


def _compile(task: tuple[str, int, TileChoice, tuple[int, ...]]) -> str | None:
    """Fill Triton's disk cache for one launch or, of a piece called "whole", for all of a linear's."""
    piece, num_parts, tiles, ranks = task
    torch.manual_seed(0)
    # as many rows as no strip of an expand is halved for
    small = build_pack(1024, [1024] * num_parts, lengths=[1100, 17000][: len(ranks)], ranks=ranks)
    try:
        if piece == "whole":
            strips = (tiles.expand_strip, 512, 256, 128) if num_parts == 1 else (tiles.expand_strip,)
            for strip in strips:
                whole_work(small, replace(tiles, expand_strip=strip))()
        else:
            piece_work(small, piece, tiles, *intermediates(small))()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{piece} {tiles} ranks {ranks}: {type(error).__name__}: {str(error)[:120]}"
    return None


def _compile_all(cases: list[str], widths: list[int]) -> list[str]:
    tasks: dict[tuple[str, int, TileChoice, tuple[int, ...]], None] = {}
    for name in cases:
        in_features, out_widths = _widths(_case(name)[0])
        ranks = (8, max(_ranks(name)))
        for tiles, _ in _rules(in_features, out_widths, _case(name)[1]).values():
            tasks["whole", len(out_widths), _explicit(tiles, in_features, out_widths), ranks] = None
        tasks |= {("shrink", 3, _changed(tiles, change), ranks): None for change in SIBLINGS if name == GUARDS[0]}
    for width in widths:
        for tiles, _ in _rules(width, (width,), 6400).values():
            tasks["whole", 1, _explicit(tiles, width, (width,)), (8, 64)] = None
        base = _rules(width, (width,), 6400)["shipped"][0]
        for piece, changes in VARIANTS.items():
            tasks |= {(piece, 1, _changed(base, change), (8, 64)): None for change in changes}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 4) - 1), mp_context=context) as pool:
        return [problem for problem in pool.map(_compile, tasks) if problem]


def _explicit(tiles: TileChoice, in_features: int, out_widths: tuple[int, ...]) -> TileChoice:
    """The shares that widths ask for, for a small pack of other widths."""
    shrink, ds = shares_of(in_features), shares_of(max(out_widths))
    return replace(tiles, shrink_splits=tiles.shrink_splits or shrink, ds_splits=tiles.ds_splits or ds)


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    leads = []
    for case in dict.fromkeys(row["case"] for row in rows):
        ratios = {row["variant"]: row["ratio"] for row in rows if row["case"] == case and row["piece"] == "whole"}
        if all(peer in ratios for peer in CLOSEST_PEERS):
            leads.append(min(ratios[peer] for peer in CLOSEST_PEERS) / ratios["shipped"])
    ahead = sum(lead > 1 for lead in leads)
    return {"few_adapters_rows_ahead": ahead, "few_adapters_least_lead": min(leads)} if leads else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    compiling = parser.add_mutually_exclusive_group()
    compiling.add_argument("--compile-only", action="store_true", help="fill Triton's cache and time nothing")
    compiling.add_argument("--compiled", action="store_true", help="Triton's cache is full: time at once")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--guards", nargs="*", default=list(GUARDS))
    parser.add_argument("--widths", nargs="*", type=int, default=list(WIDTHS))
    options = parser.parse_args()
    need_gpu()
    started = time.perf_counter()
    problems = [] if options.compiled else _compile_all([*options.cases, *options.guards], options.widths)
    print(f"compiled in {time.perf_counter() - started:.0f} s; {problems}", flush=True)
    if options.compile_only:
        return
    rows: list[dict[str, Any]] = []

    def keep(where: str, found: list[dict[str, Any]]) -> None:
        rows.extend({"case": where, **row} for row in found)
        for row in found:
            numbers = " ".join(f"{key} {row[key]:.4g}" for key in row if isinstance(row[key], float))
            print(f"{time.perf_counter() - started:.0f} s | {where} | {row['piece']} | {row['variant']} | {numbers}")
        write_result(
            options.result, question=QUESTION, headline=_headline(rows), rows=rows, notes={"not_compiled": problems}
        )

    for name in (*options.cases, *options.guards):
        pack = _pack(name)
        rules = _rules(*_widths(_case(name)[0]), _case(name)[1])
        keep(name, list(_wholes(pack, rules, peers=CLOSEST_PEERS if name in options.cases else ())))
        if name == GUARDS[0]:
            keep(name, list(_pieces(pack, rules["shipped"][0], {"shrink": SIBLINGS})))
        del pack
        torch.cuda.empty_cache()
    for width in options.widths:
        keep(f"width {width}", list(_scaling(width)))
        torch.cuda.empty_cache()
    print(f"done in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
