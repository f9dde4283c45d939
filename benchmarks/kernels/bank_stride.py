"""What do launches take where the factors of a linear lie far apart, as in a bank, and where they lie close?

A bank keeps a rank row of all linears in one piece: from one rank row of a linear to the next it is 5 MB in an 8B
model, so each is on a page of its own. ``bank``: as it is; ``layer``: rank rows of one layer one behind the other;
``linear``: of one linear. Rows of ``settings`` are of other tiles of the shrinks. Each launch runs for several layers
in turn, so that factors come from memory as in a pass.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.adapter_packs import LINEARS, Pack, build_pack, uneven_lengths
from benchmarks.kernels.gpu_variants_packed_linear import intermediates, piece_work
from benchmarks.measure import RESULTS, interleaved, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear import LoraPart
from cohort.kernels.packed_linear.triton import tiles_for

QUESTION = "What do launches of few rows take where the factors of a linear lie far apart, and where they lie close?"
RANKS = (16, 32, 64, 64)
# entries of a rank row in all linears of a layer of Llama-3.1-8B, and its layers
LAYER_WIDTH, NUM_LAYERS = 81_920, 32
LAYERS = 12
# of shrinks and of those of dY, besides the measured ones: columns a step, shares, warps, stages
SHRINKS = ((64, 2, 4, 6), (128, 2, 4, 3), (128, 2, 8, 3), (64, 8, 4, 6), (128, 8, 4, 3))
PIECES = ("shrink", "expand", "ds", "db", "da and dx")
Work = Callable[[], object]


def laid_out(pack: Pack, layout: str) -> list[Pack]:
    """Return ``pack`` with the factors of several layers, laid out as named."""
    num_rows = sum(-(-rank // 16) * 16 for rank in RANKS)
    dtype, widths = pack.x_TK.dtype, [(part.a_RK.shape[1], part.b_RN.shape[1]) for part in pack.parts]
    own_width = sum(num_in + num_out for num_in, num_out in widths)
    columns = {"bank": NUM_LAYERS * LAYER_WIDTH, "layer": LAYER_WIDTH, "linear": own_width}[layout]
    banks: list[tuple[Tensor, Tensor]] = []

    def bank(layer: int) -> tuple[Tensor, Tensor, int]:
        if layout == "bank" and banks:
            return *banks[0], layer * LAYER_WIDTH
        made = torch.zeros(num_rows, columns, device="cuda", dtype=dtype), torch.zeros(num_rows, columns, device="cuda")
        banks.append(made)
        return *made, layer * LAYER_WIDTH if layout == "bank" else 0

    found = []
    for layer in range(LAYERS):
        factors, gradients, start = bank(layer)
        parts: list[LoraPart] = []
        for part, (num_in, num_out) in zip(pack.parts, widths, strict=True):
            a, b = slice(start, start + num_in), slice(start + num_in, start + num_in + num_out)
            factors[:, a] = part.a_RK
            factors[:, b] = part.b_RN
            parts.append(
                replace(
                    part,
                    a_RK=factors[:, a],
                    b_RN=factors[:, b],
                    grad_a_RK=gradients[:, a],
                    grad_b_RN=gradients[:, b],
                )
            )
            start = b.stop
        found.append(replace(pack, parts=tuple(parts)))
    return found


def rows_of(linear: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Time the launches of one linear in every layout."""
    in_features, widths = LINEARS[linear]
    pack = build_pack(in_features, widths, lengths=uneven_lengths(num_rows, len(RANKS)), ranks=RANKS)
    tiles, (s, ds) = tiles_for(pack.x_TK, pack.parts), intermediates(pack)
    layouts = {layout: laid_out(pack, layout) for layout in ("bank", "layer", "linear")}
    for piece in PIECES:
        works: dict[str, Work] = {
            layout: _in_turn([piece_work(own, piece, tiles, s, ds) for own in packs])
            for layout, packs in layouts.items()
        }
        found = interleaved(works, baseline="linear", rounds=3, block_seconds=0.016)
        times = {f"{layout}_us": 1e3 * ms / LAYERS for layout, (ms, _) in found.items()}
        yield {"linear": linear, "rows": num_rows, "piece": piece, **times}


def shrinks_of(linear: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Time other settings of both shrinks of one linear, in a bank."""
    in_features, widths = LINEARS[linear]
    pack = build_pack(in_features, widths, lengths=uneven_lengths(num_rows, len(RANKS)), ranks=RANKS)
    tiles, (s, ds) = tiles_for(pack.x_TK, pack.parts), intermediates(pack)
    packs = laid_out(pack, "bank")
    for piece in ("shrink", "ds"):
        works: dict[str, Work] = {"measured": _in_turn([piece_work(own, piece, tiles, s, ds) for own in packs])}
        for setting in SHRINKS:
            names = ("block", "splits", "warps", "stages")
            change: dict[str, Any] = {f"{piece}_{name}": value for name, value in zip(names, setting, strict=True)}
            own_tiles = replace(tiles, **change)
            label = " ".join(map(str, setting))
            works[label] = _in_turn([piece_work(own, piece, own_tiles, s, ds) for own in packs])
        found = interleaved(works, baseline="measured", rounds=3, block_seconds=0.016)
        times = {f"{label}_us": 1e3 * ms / LAYERS for label, (ms, _) in found.items()}
        yield {"linear": linear, "rows": num_rows, "piece": f"{piece}, settings", **times}


def _in_turn(works: Sequence[Work]) -> Work:
    return lambda: [work() for work in works]


def main() -> None:
    """Measure, print, write; each linear as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--linears", choices=sorted(LINEARS), nargs="+", default=["o", "gateup", "qkv", "down"])
    parser.add_argument("--out", type=Path, default=RESULTS / "bank_stride.json")
    options = parser.parse_args()
    need_gpu()
    found: list[dict[str, Any]] = []
    for num_rows in options.rows:
        for linear in options.linears:
            for row in itertools.chain(rows_of(linear, num_rows), shrinks_of(linear, num_rows)):
                found.append(row)
                print(
                    {key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()},
                    flush=True,
                )
            torch.cuda.empty_cache()
            headline = {
                f"bank_stride_{layout}_over_bank_{rows}": sum(
                    r[f"{layout}_us"] for r in found if r["rows"] == rows and "bank_us" in r
                )
                / sum(r["bank_us"] for r in found if r["rows"] == rows and "bank_us" in r)
                for rows in sorted({row["rows"] for row in found})
                for layout in ("layer", "linear")
            }
            write_result(options.out, question=QUESTION, headline=headline, rows=found)
    print_table(found, columns=[*found[0]])


if __name__ == "__main__":
    main()
