"""A persistent Triton product with the LoRA term inside its tiles: is it near enough to the BLAS to save a pass over Y?

Not used by the package: a candidate that the variants benchmark measures.

Shapes:  M rows · N output columns · K inner width
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# a jitted function has no Python types: its operands are pointers and tiles

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.adapter_packs import Pack
from benchmarks.measure import median_replay
from cohort.kernels.packed_linear.launch_tables import LaunchTables
from cohort.kernels.packed_linear.triton_forward import entry_fields

__all__ = ["FUSED_VARIANTS", "compile_fused", "time_fused"]

# rows, columns, inner block, stages, warps, weight used as [N, K] (forward) or [K, N] (dX), with the LoRA term
FUSED_VARIANTS = [
    {"bm": bm, "bn": bn, "bk": 64, "stages": stages, "warps": 8, "nk": nk, "lora": lora}
    for bm, bn, stages in ((128, 256, 3), (128, 256, 4), (256, 128, 4))
    for nk in (True, False)
    for lora in (False, True)
]


@triton.jit
def _product_kernel(
    x_desc, w_desc, y_desc, firsts, table, s, b, M, N, K, stride_st, stride_br,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr, NK: tl.constexpr,
    LORA: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), num_m * num_n, PROGRAMS, flatten=not LORA):
        group = tile // (GROUP * num_n)
        first_m = group * GROUP
        size = tl.minimum(num_m - first_m, GROUP)
        m = first_m + (tile % (GROUP * num_n)) % size
        n = (tile % (GROUP * num_n)) // size
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            x = x_desc.load([m * BM, k * BK])
            if NK:
                acc = tl.dot(x, w_desc.load([n * BN, k * BK]).T, acc)
            else:
                acc = tl.dot(x, w_desc.load([k * BK, n * BN]), acc)
        if LORA:
            rows = m * BM + tl.arange(0, BM)
            cols = n * BN + tl.arange(0, BN)
            ranks = tl.arange(0, BR)
            for index in range(tl.load(firsts + m * 2), tl.load(firsts + m * 2 + 1)):
                start, stop, rank_row, rank, scale, _t, _f, _p = entry_fields(table, index)
                own = (rows >= start) & (rows < stop)
                s_tile = tl.load(
                    s + rows[:, None] * stride_st + ranks[None, :],
                    mask=own[:, None] & (ranks < rank)[None, :],
                    other=0.0,
                )
                s_tile = (s_tile.to(tl.float32) * scale).to(s_tile.dtype)
                b_tile = tl.load(
                    b + (rank_row + ranks)[:, None] * stride_br + cols[None, :], mask=(ranks < rank)[:, None], other=0.0
                )
                acc = tl.dot(s_tile, b_tile, acc)
        # two stores of half the columns take half the shared memory, which buys a pipeline stage
        left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        y_desc.store([m * BM, n * BN], left.to(y_desc.dtype))
        y_desc.store([m * BM, n * BN + BN // 2], right.to(y_desc.dtype))


def _launch(
    variant: dict[str, Any], x: Tensor, w: Tensor, y: Tensor, *, firsts: Tensor, table: Tensor, s: Tensor, b: Tensor
) -> None:
    bm, bn, bk = variant["bm"], variant["bn"], variant["bk"]
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    _product_kernel[(programs,)](
        TensorDescriptor.from_tensor(x, [bm, bk]),
        TensorDescriptor.from_tensor(w, [bn, bk] if variant["nk"] else [bk, bn]),
        TensorDescriptor.from_tensor(y, [bm, bn // 2]),
        firsts, table, s, b, y.shape[0], y.shape[1], x.shape[1], s.stride(0), b.stride(0),
        BM=bm, BN=bn, BK=bk, GROUP=8, PROGRAMS=programs, NK=variant["nk"], LORA=variant["lora"], BR=64,
        num_warps=variant["warps"], num_stages=variant["stages"],
    )  # fmt: skip


def _firsts(pack: Pack, rows: int) -> Tensor:
    """First and last entry of the slots that overlap each tile of ``rows`` rows."""
    ranges = []
    for start in range(0, pack.x_TK.shape[0], rows):
        touched = [z for z in range(pack.slots.num_slots) if _overlaps(pack.segments.rows(z), start, start + rows)]
        ranges.append([touched[0], touched[-1] + 1] if touched else [0, 0])
    return torch.tensor(ranges, dtype=torch.int32, device=pack.x_TK.device)


def _overlaps(rows: slice, start: int, stop: int) -> bool:
    return int(rows.start) < stop and int(rows.stop) > start and rows.stop > rows.start


def compile_fused(task: dict[str, int]) -> str | None:
    """Fill Triton's disk cache for one variant; return what went wrong."""
    variant = FUSED_VARIANTS[task["index"]]
    x, w, y, s, b = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(5))
    empty = torch.zeros(64, 8, dtype=torch.int32, device="cuda")
    try:
        _launch(variant, x, w, y, firsts=empty, table=empty, s=s, b=b)
        torch.cuda.synchronize()
    except Exception as error:  # a variant that does not compile is a result, not a failure
        return f"fused {variant}: {type(error).__name__}: {str(error)[:160]}"
    return None


def time_fused(name: str, pack: Pack) -> list[dict[str, Any]]:
    """Time forward (``nk``) and dX of single linears with and without the LoRA term, beside the BLAS's rows."""
    rows: list[dict[str, Any]] = []
    if len(pack.parts) > 1:
        return rows
    weight = pack.frozen._weight_NK  # the candidate product needs the weight itself
    for variant in FUSED_VARIANTS:
        x = pack.x_TK if variant["nk"] else pack.dy_TN
        width = weight.shape[0] if variant["nk"] else weight.shape[1]
        factor = pack.parts[0].b_RN if variant["nk"] else pack.parts[0].a_RK
        s = torch.randn(x.shape[0], 64, device=x.device, dtype=x.dtype)
        y = torch.full((x.shape[0], width), torch.nan, device=x.device, dtype=x.dtype)
        tables = LaunchTables(pack.segments, pack.slots, device=x.device, chunk_rows=1 << 30)
        firsts = _firsts(pack, variant["bm"])
        row: dict[str, Any] = {"linear": name, "step": f"fused_{'forward' if variant['nk'] else 'dx'}", **variant}
        row["step"] += "_lora" if variant["lora"] else ""
        try:
            work = lambda v=variant, x=x, y=y, f=firsts, t=tables, s=s, b=factor: _launch(  # noqa: E731
                v, x, weight, y, firsts=f, table=t.passes[0].chunks, s=s, b=b
            )
            work()
            wanted = torch.mm(x, weight.T if variant["nk"] else weight).float()
            if variant["lora"]:
                for z, rank in enumerate(pack.slots.ranks):
                    own = pack.segments.rows(z)
                    delta = s[own, :rank].float() @ factor[pack.slots.rank_rows(z)].float()
                    wanted[own] += delta * pack.slots.scales[z]
            row["error"] = float((y.float() - wanted).norm() / wanted.norm())
            row["ms"] = median_replay(work, budget_seconds=0.08) if row["error"] < 1e-2 else None
        except Exception as error:  # recorded, not raised: the other variants still count
            row["failed"] = f"{type(error).__name__}: {str(error)[:100]}"
        rows.append(row)
    return rows
