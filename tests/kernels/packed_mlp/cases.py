"""Packs of the fused feed-forward block's tests: one block, its adapters, one stream, and what the float64 definition
says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cohort.kernels.packed_linear import LaunchTables, LoraPart, SlotTable
from cohort.kernels.packed_mlp import triton as fused
from cohort.kernels.packed_mlp.choice import MlpTiles, RankTiles
from cohort.kernels.packed_mlp.reference import packed_mlp_reference
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import assert_near
from tests.kernels.packed_linear.cases import sink_of

__all__ = ["ROUNDINGS", "SMALL", "Case", "assert_equal_to_reference", "make_case"]

_SMALL_RANK = RankTiles(
    forward_block=16,
    forward_warps=4,
    forward_stages=2,
    backward_rows=16,
    backward_block=16,
    backward_warps=4,
    backward_stages=2,
)
# strips of two blocks, and a feed-forward width that is no multiple of either
SMALL = MlpTiles(forward_strip=32, by_class=dict.fromkeys((16, 32, 64, 128), _SMALL_RANK))
# 16 bits: G, S, dS, act and dG are rounded between products, and every result is at most six products away from x
ROUNDINGS = 6.0


@dataclass(kw_only=True)
class Case:
    """One feed-forward block, its adapters, one stream: rows of each slot, then rows of no adapter."""

    x: Tensor
    dy: Tensor
    gate_up: Tensor
    down: Tensor
    parts: list[LoraPart]
    slots: SlotTable
    segments: SegmentTable
    row_keys: Tensor | None
    tile_rows: int = 16
    chunk_rows: int = 32

    def tables(self, *, fixed_launch: bool = False) -> LaunchTables:
        return LaunchTables(
            self.segments,
            self.slots,
            device=self.x.device,
            tile_rows=self.tile_rows,
            chunk_rows=self.chunk_rows,
            fixed_launch=fixed_launch,
        )

    def run(self, tiles: MlpTiles = SMALL, tables: LaunchTables | None = None) -> dict[str, Tensor]:
        for part in self.parts:
            sink_of(part.grad_a_RK).zero_()
            sink_of(part.grad_b_RN).zero_()
        tables = tables or self.tables()
        arguments: dict[str, Any] = {
            "gate_up": FrozenLinear(self.gate_up), "gate_up_parts": self.parts[:2], "down": FrozenLinear(self.down),
            "down_part": self.parts[2], "tables": tables, "row_keys_T": self.row_keys, "tiles": tiles,
        }  # fmt: skip
        y, (g, s, s_down) = fused.mlp_forward(self.x, **arguments)
        dx = fused.mlp_backward(self.dy, x_TD=self.x, g_TF=g, s_PTC=s, s_down_PTC=s_down, **arguments)
        assert dx is not None
        return {"y": y, "dx": dx} | self.sinks()

    def sinks(self) -> dict[str, Tensor]:
        found = {}
        for name, part in zip(("gate", "up", "down"), self.parts, strict=True):
            found[f"da_{name}"] = sink_of(part.grad_a_RK).clone()
            found[f"db_{name}"] = sink_of(part.grad_b_RN).clone()
        return found

    def reference(self) -> dict[str, Tensor]:
        x = self.x.double().requires_grad_()
        parts = [
            replace(
                part,
                a_RK=part.a_RK.double().requires_grad_(),
                b_RN=part.b_RN.double().requires_grad_(),
                grad_a_RK=None,
                grad_b_RN=None,
            )
            for part in self.parts
        ]
        y = packed_mlp_reference(
            x,
            gate_up_weight_FD=self.gate_up.double(),
            gate_up_parts=parts[:2],
            down_weight_DF=self.down.double(),
            down_parts=parts[2:],
            slots=self.slots,
            segments=self.segments,
            row_keys_T=self.row_keys,
        )
        y.backward(self.dy.double())
        assert x.grad is not None
        results = {"y": y.detach(), "dx": x.grad}
        for name, part in zip(("gate", "up", "down"), parts, strict=True):
            results[f"da_{name}"] = torch.zeros_like(part.a_RK) if part.a_RK.grad is None else part.a_RK.grad
            results[f"db_{name}"] = torch.zeros_like(part.b_RN) if part.b_RN.grad is None else part.b_RN.grad
        return results


def make_case(
    device: str,
    *,
    lengths: Sequence[int],
    ranks: Sequence[int],
    hidden: int = 24,
    width: int = 40,
    dropouts: Sequence[float] | None = None,
    extra: int = 3,
    dtype: torch.dtype = torch.float32,
    row_stride: int | None = None,
    chunk_rows: int = 32,
    tile_rows: int = 16,
) -> Case:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * size).to(device, dtype)

    num_rows, starts, row = sum(lengths) + extra, [], 0
    for rank in ranks:
        starts.append(row)
        row += -(-rank // 16) * 16
    slots = SlotTable(
        row_starts=tuple(starts),
        ranks=tuple(ranks),
        scales=tuple(0.5 + 0.75 * index for index in range(len(ranks))),
        dropouts=tuple(dropouts or [0.0] * len(ranks)),
    )
    segments = SegmentTable.from_samples(
        [*lengths, extra], slots=[*range(len(ranks)), -1], num_slots=len(ranks), num_rows=num_rows
    )

    def factor(columns: int, size: float) -> Tensor:
        # other linears' factors lie between one rank row and the next, as in a bank; they must never be read
        whole = torch.full((max(row, 1), row_stride or columns), torch.nan, device=device, dtype=dtype)[:, :columns]
        whole.zero_()
        for start, rank in zip(starts, ranks, strict=True):
            whole[start : start + rank] = normal(rank, columns, size=size)
        return whole

    def part(in_features: int, out_features: int, *, start: int, key: int) -> LoraPart:
        return LoraPart(
            a_RK=factor(in_features, in_features**-0.5),
            b_RN=factor(out_features, 0.3),
            grad_a_RK=torch.zeros(max(row, 1), row_stride or in_features, device=device)[:, :in_features],
            grad_b_RN=torch.zeros(max(row, 1), row_stride or out_features, device=device)[:, :out_features],
            column_start=start,
            module_key=key,
        )

    return Case(
        x=normal(num_rows, hidden),
        dy=normal(num_rows, hidden),
        gate_up=normal(2 * width, hidden, size=hidden**-0.5),
        down=normal(hidden, width, size=width**-0.5),
        parts=[
            part(hidden, width, start=0, key=(1 << 31) + 5),
            part(hidden, width, start=width, key=77),
            part(width, hidden, start=0, key=(1 << 32) - 3),
        ],
        slots=slots,
        segments=segments,
        row_keys=torch.randint(0, 2**32, (num_rows,), generator=generator).to(device) if dropouts else None,
        chunk_rows=chunk_rows,
        tile_rows=tile_rows,
    )


def assert_equal_to_reference(case: Case, found: dict[str, Tensor]) -> None:
    expected = case.reference()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert_near(tensor.to(case.x.dtype), expected[name], roundings=ROUNDINGS)
