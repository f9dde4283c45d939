"""What do the codes of the widest gradient cost, by who writes them and by the tiles of the shrink that does?

``python -m benchmarks.kernels.fp8_gradient [--tokens 8192] [--out RESULT.json]``. The gradient of gate and up of an 8B
model (28,672 columns), four adapters of rank 16: the pass that makes it, with and without the rows' sizes; the shrink
behind it, with and without their codes, by columns, warps and stages; and a rounding of its own. Every variant gives
the same codes, which is checked. ``--tiny`` tries it out in Triton's interpreter, whose times mean nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.measure import RESULTS, milliseconds, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.backend import Backend
from cohort.kernels.fp8_product import quantise_rows
from cohort.kernels.packed_linear import LaunchTables, LoraPart, SlotTable
from cohort.kernels.packed_linear.launch.launches import output_side_ds
from cohort.kernels.packed_linear.portable.rounding import Rounding, begin_rounding
from cohort.kernels.packed_linear.triton import tiles_for
from cohort.kernels.packed_mlp import triton as mlp
from cohort.kernels.packed_mlp.choice import default_tiles
from cohort.kernels.segments import SegmentTable

QUESTION = "What do the codes of the gradient of gate and up cost, by who writes them?"
HIDDEN, WIDTH, NUM_ADAPTERS, RANK = 4096, 14336, 4, 16
TILES = (
    (64, 4, 3),
    (64, 4, 4),
    (64, 8, 3),
    (128, 4, 3),
    (128, 8, 2),
    (128, 8, 3),
    (128, 16, 3),
    (256, 8, 2),
    (256, 16, 2),
)


def _part(num_in: int, num_out: int, *, start: int, like: Tensor) -> LoraPart:
    rows = NUM_ADAPTERS * RANK
    a, b = (torch.randn(rows, width, device=like.device).to(like.dtype) * 0.02 for width in (num_in, num_out))
    sinks = [torch.zeros(rows, width, device=like.device) for width in (num_in, num_out)]
    return LoraPart(a_RK=a, b_RN=b, grad_a_RK=sinks[0], grad_b_RN=sinks[1], column_start=start, module_key=start)


def measure(*, num_rows: int, width: int, device: str) -> dict[str, Any]:
    """Return the microseconds of every piece, at ``num_rows`` rows of ``width`` columns of gate."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    hidden = min(HIDDEN, width)
    x = torch.randn(num_rows, hidden, device=device).to(dtype)
    parts = [_part(hidden, width, start=0, like=x), _part(hidden, width, start=width, like=x)]
    down = _part(width, hidden, start=0, like=x)
    slots = SlotTable(
        row_starts=tuple(RANK * slot for slot in range(NUM_ADAPTERS)),
        ranks=(RANK,) * NUM_ADAPTERS,
        scales=(2.0,) * NUM_ADAPTERS,
        dropouts=(0.0,) * NUM_ADAPTERS,
    )
    lengths = [num_rows // NUM_ADAPTERS] * NUM_ADAPTERS
    segments = SegmentTable.from_samples(
        lengths, slots=list(range(NUM_ADAPTERS)), num_slots=NUM_ADAPTERS, num_rows=num_rows
    )
    tiles = tiles_for(x, parts)
    tables = LaunchTables(
        segments, slots, device=torch.device(device), tile_rows=tiles.tile_rows, chunk_rows=tiles.chunk_rows
    )
    (rank_pass,) = tables.passes
    g, d = (torch.randn(num_rows, columns, device=device).to(dtype) for columns in (2 * width, width))
    s = torch.randn(2, num_rows, tables.num_columns, device=device).to(dtype)
    factors = torch.rand(2 * width, device=device) + 0.5

    def whole(rounding: Rounding | None = None) -> Tensor:
        return mlp.gradients(
            g, d, x_TD=x, s_PTC=s, ds_down_PTC=s[:1], gate_up_parts=parts, down_part=down, tables=tables,
            row_keys_T=None, tiles=default_tiles(), rounding=rounding,
        )[0]  # fmt: skip

    def together() -> Rounding:
        rounding = begin_rounding(g, factors_N=factors)
        whole(rounding)
        return rounding

    kept, gradient = together(), whole()
    expected = quantise_rows(gradient, factors_K=factors, backend=Backend.TRITON)

    def shrink(block: int, warps: int, stages: int, rounding: Rounding | None) -> Callable[[], Tensor]:
        own = replace(tiles, ds_block=block, ds_warps=warps, ds_stages=stages)
        return lambda: output_side_ds(gradient, parts, rank_pass, tables=tables, tiles=own, rounding=rounding)

    works: dict[str, Callable[[], object]] = {
        "both passes": whole,
        "both passes with codes": together,
        "rounding apart": lambda: quantise_rows(gradient, factors_K=factors, backend=Backend.TRITON),
        "shrink": shrink(tiles.ds_block, tiles.ds_warps, tiles.ds_stages, None),
    }
    for block, warps, stages in TILES if device == "cuda" else TILES[:2]:
        works[f"shrink with codes, {block} columns, {warps} warps, {stages} stages"] = shrink(
            block, warps, stages, kept
        )
    for name, work in list(works.items()):
        kept.rows.codes_TK.view(torch.uint8).zero_()
        try:
            found = work()
        except triton.runtime.errors.OutOfResources as error:
            print(f"{name}: {error}", flush=True)
            del works[name]
            continue
        rows = found.rows if isinstance(found, Rounding) else kept.rows if "shrink with" in name else expected
        assert torch.equal(rows.codes_TK.view(torch.uint8), expected.codes_TK.view(torch.uint8)), name
        assert torch.equal(rows.scales_T, expected.scales_T), name
    times = milliseconds(works, baseline="both passes")
    return {"tokens": num_rows, "width": width, **{f"{name} us": ms * 1e3 for name, ms in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "fp8_gradient.json")
    options = parser.parse_args()
    need_gpu(shape="tiny" if options.tiny else None)
    torch.manual_seed(0)
    device, width = ("cpu", 128) if options.tiny else ("cuda", WIDTH)
    rows = []
    for num_rows in [32] if options.tiny else options.tokens:
        rows.append(measure(num_rows=num_rows, width=width, device=device))
        write_result(options.out, question=QUESTION, headline=headline(rows), rows=rows)
        print_table([{"piece": name, "us": us} for name, us in rows[-1].items()], columns=["piece", "us"])


def headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What codes written in passing save over a rounding of their own, at the most tokens."""
    last = rows[-1]
    apart = last["both passes us"] + last["rounding apart us"]
    return {"fp8_gradient_apart_over_together": apart / last["both passes with codes us"]}


if __name__ == "__main__":
    main()
