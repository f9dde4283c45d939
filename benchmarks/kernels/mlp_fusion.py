"""What do adapters add to a feed-forward block, fused with its activation and composed of packed linears?

``python -m benchmarks.kernels.mlp_fusion [--out FILE] [--sweep]``: Llama-3.1-8B's block, 8192 rows, forward + backward
by CUDA-graph replay over the frozen block's forward + gradient of its input. ``--sweep`` times tiles of the two fused
kernels instead, each checked against the composed kernels' results first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.adapter_packs import MIXED_RANKS, Pack, build_pack, uneven_lengths
from benchmarks.measure import RESULTS, copy_ceiling, matrix_ceiling, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.packed_linear import triton as linear
from cohort.kernels.packed_mlp import triton as fused
from cohort.kernels.packed_mlp.choice import MlpTiles, RankTiles, default_tiles
from cohort.kernels.swiglu.triton import swiglu_backward, swiglu_forward

QUESTION = "What do adapters add to a feed-forward block, fused with its activation and composed of packed linears?"
HIDDEN, WIDTH, ROWS = 4096, 14336, 8192

# columns of a step and of a strip, warps, stages
FORWARD = [(64, 1024, 4, 3), (64, 2048, 4, 3), (32, 1024, 4, 4)]
# rows and columns of a step, warps, stages, dB in the pass
BACKWARD = [
    (64, 64, 4, 3, True), (64, 64, 4, 3, False), (64, 64, 4, 2, False), (64, 64, 4, 4, False), (64, 128, 4, 2, False),
    (32, 64, 4, 4, False),
]  # fmt: skip


@dataclass(kw_only=True)
class Block:
    """One feed-forward block: its two linears' packs over the same stream, and a gradient of its output."""

    gate_up: Pack
    down: Pack
    dy: Tensor
    row_keys: Tensor | None

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of both passes of the fused block."""
        return {
            "gate_up": self.gate_up.frozen, "gate_up_parts": self.gate_up.parts, "down": self.down.frozen,
            "down_part": self.down.parts[0], "tables": self.gate_up.tables, "row_keys_T": self.row_keys,
        }  # fmt: skip

    def gradients(self) -> list[Tensor]:
        """Copies of all sinks, which start from zero again."""
        found = []
        for part in (*self.gate_up.parts, *self.down.parts):
            for sink in (part.grad_a_RK, part.grad_b_RN):
                assert sink is not None, "benchmark packs have sinks"
                found.append(sink.clone())
                sink.zero_()
        return found


def build_block(
    ranks: Sequence[int], *, rows: int = ROWS, width: int = WIDTH, hidden: int = HIDDEN, dropout: float = 0.0
) -> Block:
    """Return a block of random values, the adapters' segments of uneven length unless they are 8."""
    torch.manual_seed(0)
    count = len(ranks)
    lengths = [rows // count] * count if count == 8 else uneven_lengths(rows, count)
    gate_up = build_pack(hidden, (width, width), lengths=lengths, ranks=ranks)
    down = build_pack(width, (hidden,), lengths=lengths, ranks=ranks)
    row_keys = None
    if dropout:
        slots = replace(gate_up.slots, dropouts=(dropout,) * count)
        gate_up.slots, gate_up.tables = slots, LaunchTables(gate_up.segments, slots, device="cuda")
        row_keys = torch.randint(0, 2**32, (rows,), device="cuda")
    return Block(gate_up=gate_up, down=down, dy=torch.randn(rows, hidden, device="cuda").bfloat16(), row_keys=row_keys)


def composed_work(block: Block) -> Callable[[], tuple[Tensor, Tensor | None]]:
    """Packed linear, activation, packed linear."""
    gate_up, down, x = block.gate_up, block.down, block.gate_up.x_TK
    tables = gate_up.tables

    def work() -> tuple[Tensor, Tensor | None]:
        first: dict[str, Any] = {
            "frozen": gate_up.frozen, "parts": gate_up.parts, "tables": tables, "row_keys_T": block.row_keys,
        }  # fmt: skip
        second = first | {"frozen": down.frozen, "parts": down.parts}
        g, s = linear.grouped_forward(x, **first)
        act = swiglu_forward(g)
        y, s_down = linear.grouped_forward(act, **second)
        d = linear.grouped_backward(block.dy, x_TK=act, s_PTC=s_down, **second)
        assert d is not None
        return y, linear.grouped_backward(swiglu_backward(d, gate_up_TF=g), x_TK=x, s_PTC=s, **first)

    return work


def fused_work(block: Block, tiles: MlpTiles | None = None) -> Callable[[], tuple[Tensor, Tensor | None]]:
    """The fused block."""

    def work() -> tuple[Tensor, Tensor | None]:
        x = block.gate_up.x_TK
        y, (g, s, s_down) = fused.mlp_forward(x, tiles=tiles, **block.arguments)
        kept: dict[str, Any] = {"x_TD": x, "g_TF": g, "s_PTC": s, "s_down_PTC": s_down}
        return y, fused.mlp_backward(block.dy, tiles=tiles, **kept, **block.arguments)

    return work


def frozen_work(block: Block) -> Callable[[], object]:
    """The frozen block: forward and the gradient of its input."""

    def work() -> object:
        g = block.gate_up.frozen.forward(block.gate_up.x_TK)
        y = block.down.frozen.forward(swiglu_forward(g))
        dg = swiglu_backward(block.down.frozen.grad_input(block.dy), gate_up_TF=g)
        return y, block.gate_up.frozen.grad_input(dg)

    return work


def _error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    return max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(found, wanted, strict=True))


def _check(block: Block) -> float:
    y, dx = composed_work(block)()
    assert dx is not None
    wanted = [y, dx, *block.gradients()]
    y, dx = fused_work(block)()
    assert dx is not None
    error = _error([y, dx, *block.gradients()], wanted)
    if not error < 2e-2:
        raise SystemExit(f"relative error {error:.2e} against the composed block; no timing of wrong results")
    return error


def floor_ms(*, tb_per_s: float) -> dict[str, float]:
    """Milliseconds of bytes that the LoRA terms must move beyond the frozen block: composed, and fused.

    Composed: x and dY read once more, dx and y written once more, the same for the activation and gate and up, whose
    terms are written and read apart. Fused: x read twice, dY once, y and dx written once; nothing as wide as F.
    """
    narrow = 2 * ROWS * HIDDEN * 5
    wide = 2 * ROWS * WIDTH * 8
    return {"fused_floor_ms": narrow / tb_per_s / 1e9, "composed_floor_ms": (narrow + wide) / tb_per_s / 1e9}


def measure(name: str, ranks: Sequence[int], *, tb_per_s: float, dropout: float = 0.0) -> dict[str, Any]:
    """Return one row of the table."""
    block = build_block(ranks, dropout=dropout)
    row: dict[str, Any] = {"pack": name, "rows": ROWS, "error": _check(block)}
    works = {"frozen": frozen_work(block), "composed": composed_work(block), "fused": fused_work(block)}
    works["db_apart"] = fused_work(block, replace(default_tiles(), with_db=False))
    for column, work in works.items():
        row[f"{column}_ms"] = median_replay(work)
    for column in ("composed", "fused", "db_apart"):
        row[f"{column}_tax"] = row[f"{column}_ms"] / row["frozen_ms"]
    return row | floor_ms(tb_per_s=tb_per_s) | _passes(block)


def _passes(block: Block) -> dict[str, float]:
    """Milliseconds of the two fused passes and of the plain activation."""
    g = block.gate_up.frozen.forward(block.gate_up.x_TK)
    d = block.down.frozen.grad_input(block.dy)
    forward, backward = _pass_work(block, g, d, default_tiles())
    return {
        "swiglu_forward_ms": median_replay(lambda: swiglu_forward(g)),
        "activate_ms": median_replay(forward),
        "swiglu_backward_ms": median_replay(lambda: swiglu_backward(d, gate_up_TF=g)),
        "gradients_ms": median_replay(backward),
    }


def _pass_work(
    block: Block, g: Tensor, d: Tensor, tiles: MlpTiles
) -> tuple[Callable[[], tuple[Tensor, Tensor]], Callable[[], tuple[Tensor, Tensor]]]:
    tables = block.gate_up.tables
    generator = torch.Generator("cuda").manual_seed(1)
    shape = (2, g.shape[0], tables.num_columns)
    s, ds = (torch.randn(shape, device="cuda", generator=generator).bfloat16() for _ in range(2))
    shared: dict[str, Any] = {
        "gate_up_parts": block.gate_up.parts, "down_part": block.down.parts[0], "tables": tables,
        "row_keys_T": block.row_keys, "tiles": tiles,
    }  # fmt: skip
    return (
        lambda: fused.activate(g, s, **shared),
        lambda: fused.gradients(g, d, x_TD=block.gate_up.x_TK, s_PTC=s, ds_down_PTC=ds[:1], **shared),
    )


def _variant(index: int, *, backward: bool) -> MlpTiles:
    tiles = default_tiles()
    if backward:
        rows, block, warps, stages, with_db = BACKWARD[index]
        own: RankTiles = replace(
            tiles.by_class[16],
            backward_rows=rows,
            backward_block=block,
            backward_warps=warps,
            backward_stages=stages,
        )
        return replace(tiles, with_db=with_db, by_class=dict.fromkeys((16, 32, 64, 128), own))
    block, strip, warps, stages = FORWARD[index]
    own = replace(tiles.by_class[16], forward_block=block, forward_warps=warps, forward_stages=stages)
    return replace(tiles, forward_strip=strip, by_class=dict.fromkeys((16, 32, 64, 128), own))


def _compile(task: tuple[int, bool, int]) -> str | None:
    """Fill Triton's disk cache for one variant (the chosen tiles for -1 and -2); return what went wrong."""
    index, backward, rank = task
    block = build_block([rank] * 8, rows=1024, width=2048, hidden=256)
    tiles = replace(default_tiles(), with_db=index == -1) if index < 0 else _variant(index, backward=backward)
    g, d = (torch.randn(1024, n, device="cuda").bfloat16() for n in (4096, 2048))
    try:
        _pass_work(block, g, d, tiles)[int(backward)]()
        torch.cuda.synchronize()
    except Exception as error:  # a variant that does not compile is a result, not a failure
        problem = f"rank {rank} {BACKWARD[index] if backward else FORWARD[index]}: {str(error)[:150]}"
        print(problem, flush=True)
        return problem
    return None


def _compile_all(tasks: Sequence[tuple[int, bool, int]]) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 4) - 1), mp_context=context) as pool:
        list(pool.map(_compile, tasks))


def sweep(ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Return milliseconds of every variant of both passes, 8 adapters of each rank."""
    tasks = [(i, True, r) for r in ranks for i in range(len(BACKWARD))]
    tasks += [(i, False, r) for r in ranks for i in range(len(FORWARD))]
    _compile_all(tasks)
    rows = []
    for rank in ranks:
        block = build_block([rank] * 8)
        g = block.gate_up.frozen.forward(block.gate_up.x_TK)
        d = block.down.frozen.grad_input(block.dy)
        wanted: dict[bool, Tensor] = {}
        for backward, variants in ((False, FORWARD), (True, BACKWARD)):
            for index, variant in enumerate(variants):
                row: dict[str, Any] = {"rank": rank, "pass": "backward" if backward else "forward"}
                try:
                    work = _pass_work(block, g, d, _variant(index, backward=backward))[int(backward)]
                    out, s = work()
                    row |= {"tiles": str(variant), "error": _error([out], [wanted.setdefault(backward, out)])}
                    row["ms"] = median_replay(work, budget_seconds=0.03)
                    del out, s
                except Exception as error:
                    row |= {"tiles": str(variant), "failed": str(error)[:100]}
                rows.append(row)
    return sorted(rows, key=lambda row: (row["rank"], row["pass"], row.get("ms", 1e9)))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "mlp_fusion.json")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--quick", action="store_true", help="rank 16, mixed ranks and rank 64 alone")
    options = parser.parse_args()
    need_gpu()
    if options.sweep:
        rows = sweep((16, 32, 64))
        print_table(rows, columns=("rank", "pass", "tiles", "ms", "error", "failed"))
        write_result(options.out, question="Which tiles are fastest?", headline={}, rows=rows)
        return
    tb_per_s, tflops = copy_ceiling(), matrix_ceiling()
    _compile_all([(i, backward, r) for r in (64, 32, 16) for i in (-1, -2) for backward in (True, False)])
    packs = [("8 x r16", [16] * 8), ("32 mixed", [MIXED_RANKS[i % 4] for i in range(32)]), ("8 x r64", [64] * 8)]
    if not options.quick:
        packs += [(f"8 x r{r}", [r] * 8) for r in (8, 32, 128)]
    rows = [measure(name, ranks, tb_per_s=tb_per_s) for name, ranks in packs]
    if not options.quick:
        rows.append(measure("8 x r16, dropout 0.1", [16] * 8, tb_per_s=tb_per_s, dropout=0.1))
    print_table(rows, columns=list(rows[0]))
    headline = {
        "mlp_tax_8x16": rows[0]["fused_tax"],
        "mlp_tax_32_mixed": rows[1]["fused_tax"],
        "composed_mlp_tax_8x16": rows[0]["composed_tax"],
        "composed_mlp_tax_32_mixed": rows[1]["composed_tax"],
    }
    notes = {"copy_tb_per_s": tb_per_s, "matrix_tflop_per_s": tflops}
    write_result(options.out, question=QUESTION, headline=headline, rows=rows, notes=notes)


if __name__ == "__main__":
    main()
