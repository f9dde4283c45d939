"""What does a step of AdamW take with float32 moments and with 8-bit ones, next to the bytes that each has to move?

Eight adapters of rank 16 on all linears of an 8B model, recorded as a graph. ``--searching`` finds the 8-bit codes by
eight steps of a search, each a load from a table: the same codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.measure import RESULTS, copy_ceiling, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.kernels.adamw import SlotUpdate, adamw_step, stage_slots
from cohort.kernels.adamw_8bit import BLOCK, BlockMoment, adamw_8bit_step
from cohort.kernels.adamw_8bit import triton as kernels

# entries of a rank row: A and B of all linears of 32 layers
WIDTH = 32 * ((6 * 4096 + 14336) + (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096))
NUM_SLOTS, RANK = 8, 16
NUM_ROWS = NUM_SLOTS * RANK


@triton.jit
def _searched_code(x, middles_ptr, ranges_ptr):  # type: ignore[no-untyped-def]  # noqa: ARG001 - the other's
    code = tl.zeros_like(x).to(tl.int32)
    for step in tl.static_range(8):
        candidate = code + (128 >> step)
        code = tl.where(x > tl.load(middles_ptr + candidate - 1), candidate, code)
    return code


def _moment(sizes: Tensor) -> BlockMoment:
    """Return a moment whose codes are spread over the map, as those of ``sizes``."""
    codes_RD = torch.randint(1, 255, sizes.shape, dtype=torch.uint8, device="cuda")
    return BlockMoment(codes_RD=codes_RD, scales_RB=sizes[:, ::BLOCK].abs().contiguous())


def measure(*, ceiling: float) -> list[dict[str, Any]]:
    """Return a row for each kind of moments."""
    generator = torch.Generator("cuda").manual_seed(0)

    def matrix(scale: float) -> Tensor:
        return torch.randn(NUM_ROWS, WIDTH, device="cuda", generator=generator).mul_(scale)

    params, grads, mean, square = matrix(1e-2), matrix(1e-3), matrix(1e-4), matrix(1e-6).abs_()
    compute = params.bfloat16()
    slots = [
        SlotUpdate(row_start=slot * RANK, rank=RANK, learning_rate=1e-6, step=10, max_grad_norm=1.0)
        for slot in range(NUM_SLOTS)
    ]
    staged = stage_slots(slots, device=params.device)
    means, squares = _moment(mean), _moment(square)

    def plain() -> None:
        adamw_step(params, grads_RD=grads, exp_avg_RD=mean, exp_avg_sq_RD=square, slots=staged, compute_RD=compute)

    def eight_bits() -> None:
        adamw_8bit_step(params, grads_RD=grads, exp_avg=means, exp_avg_sq=squares, slots=staged, compute_RD=compute)

    # norms read the gradients; updates read parameters, gradients and both moments, write all but gradients, and a copy
    works: dict[str, tuple[Callable[[], None], float]] = {
        "adamw": (plain, 4 + 16 + 12 + 2),
        "adamw_8bit": (eight_bits, 4 + 10 + 4 * 2 / BLOCK + 8 + 4 * 2 / BLOCK),
    }
    rows = []
    for name, (work, entry_bytes) in works.items():
        ms = median_replay(work)
        floor = entry_bytes * params.numel() / ceiling / 1e9
        moments = 8.0 if name == "adamw" else 2 * (1 + 4 / BLOCK)
        rows.append({"optim": name, "ms": ms, "floor_ms": floor, "over_floor": ms / floor, "bytes_of_moments": moments})
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searching", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "optimizer_states.json")
    options = parser.parse_args()
    need_gpu()
    if options.searching:
        kernels.nearest_code = _searched_code
    rows = measure(ceiling=copy_ceiling())
    print_table(rows, columns=list(rows[0]))
    plain, coded = rows
    write_result(
        options.out,
        question="What does a step of AdamW take with float32 moments and with 8-bit ones?",
        headline={"adamw_8bit_over_adamw": coded["ms"] / plain["ms"], "adamw_8bit_over_floor": coded["over_floor"]},
        rows=rows,
        notes={"adapters": NUM_SLOTS, "r": RANK, "entries": NUM_ROWS * WIDTH, "searching": options.searching},
    )


if __name__ == "__main__":
    main()
