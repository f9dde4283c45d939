"""Packs of the packed linear's tests: one linear, its adapters, one stream, and what the float64 definition says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cohort.kernels.packed_linear import LaunchTables, LoraPart, SlotTable
from cohort.kernels.packed_linear import triton as grouped
from cohort.kernels.packed_linear.choice.tiles import TileChoice
from cohort.kernels.packed_linear.reference import packed_linear_reference
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from tests.kernels.closeness import assert_near

__all__ = ["ROUNDINGS", "SMALL", "Case", "assert_equal_to_reference", "make_case", "sink_of"]

SMALL = TileChoice(
    tile_rows=16,
    chunk_rows=32,
    shrink_block=32,
    ds_block=16,
    expand_block=16,
    expand_strip=32,
    output_rows=16,
    output_block=32,
    input_rows=16,
    input_block=32,
    da_rows=16,
    da_block=32,
    ds_apart=False,
)
# bf16 keeps S and dS in 16 bits between two products: three roundings of independent elements in every result
ROUNDINGS = 4.0


@dataclass(kw_only=True)
class Case:
    """One linear, its adapters, one stream; ``lengths[z]`` rows of slot z, then ``extra`` rows of no adapter."""

    x: Tensor
    dy: Tensor
    weight: Tensor
    bias: Tensor | None
    parts: list[LoraPart]
    slots: SlotTable
    segments: SegmentTable
    row_keys: Tensor | None

    def tables(self, tiles: TileChoice = SMALL, **options: Any) -> LaunchTables:
        return LaunchTables(
            self.segments,
            self.slots,
            device=self.x.device,
            tile_rows=tiles.tile_rows,
            chunk_rows=tiles.chunk_rows,
            **options,
        )

    def run(self, tiles: TileChoice = SMALL, tables: LaunchTables | None = None) -> dict[str, Tensor]:
        frozen = FrozenLinear(self.weight, self.bias)
        tables = tables or self.tables(tiles)
        frozen.is_exact = tables.exact
        for part in self.parts:
            sink_of(part.grad_a_RK).zero_()
            sink_of(part.grad_b_RN).zero_()
        arguments: dict[str, Any] = {
            "frozen": frozen,
            "parts": self.parts,
            "tables": tables,
            "row_keys_T": self.row_keys,
        }
        y, s = grouped.grouped_forward(self.x, tiles=tiles, **arguments)
        dx = grouped.grouped_backward(self.dy, x_TK=self.x, s_PTC=s, tiles=tiles, **arguments)
        assert dx is not None
        results = {"y": y, "dx": dx}
        for index, part in enumerate(self.parts):
            results[f"da{index}"] = sink_of(part.grad_a_RK).clone()
            results[f"db{index}"] = sink_of(part.grad_b_RN).clone()
        return results

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
        y = packed_linear_reference(
            x,
            weight_NK=self.weight.double(),
            bias_N=None if self.bias is None else self.bias.double(),
            parts=parts,
            slots=self.slots,
            segments=self.segments,
            row_keys_T=self.row_keys,
        )
        y.backward(self.dy.double())
        assert x.grad is not None
        results = {"y": y.detach(), "dx": x.grad}
        for index, part in enumerate(parts):
            results[f"da{index}"] = torch.zeros_like(part.a_RK) if part.a_RK.grad is None else part.a_RK.grad
            results[f"db{index}"] = torch.zeros_like(part.b_RN) if part.b_RN.grad is None else part.b_RN.grad
        return results


def sink_of(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient


def make_case(
    device: str,
    *,
    lengths: Sequence[int],
    ranks: Sequence[int],
    in_features: int = 40,
    widths: Sequence[int] = (24,),
    dropouts: Sequence[float] | None = None,
    extra: int = 3,
    dtype: torch.dtype = torch.float32,
    bias: bool = False,
    row_stride: int | None = None,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, size: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * size).to(device, dtype)

    num_rows = sum(lengths) + extra
    starts, row = [], 0
    for rank in ranks:
        starts.append(row)
        row += -(-rank // 16) * 16
    slots = SlotTable(
        row_starts=tuple(starts),
        ranks=tuple(ranks),
        scales=tuple(0.5 + index for index in range(len(ranks))),
        dropouts=tuple(dropouts or [0.0] * len(ranks)),
    )
    segments = SegmentTable.from_samples(
        [*lengths, extra], slots=[*range(len(ranks)), -1], num_slots=len(ranks), num_rows=num_rows
    )

    def factor(width: int, size: float) -> Tensor:
        whole = torch.zeros(max(row, 1), row_stride or width, device=device, dtype=dtype)[:, :width]
        for start, rank in zip(starts, ranks, strict=True):
            whole[start : start + rank] = normal(rank, width, size=size)
        return whole

    def sink(width: int) -> Tensor:
        return torch.zeros(max(row, 1), row_stride or width, device=device)[:, :width]

    parts, column = [], 0
    for index, width in enumerate(widths):
        parts.append(
            LoraPart(
                a_RK=factor(in_features, in_features**-0.5),
                b_RN=factor(width, 0.3),
                grad_a_RK=sink(in_features),
                grad_b_RN=sink(width),
                column_start=column,
                module_key=(1 << 31) + 77 * index,
            )
        )
        column += width
    row_keys = torch.randint(0, 2**32, (num_rows,), generator=generator).to(device) if dropouts else None
    return Case(
        x=normal(num_rows, in_features),
        dy=normal(num_rows, column),
        weight=normal(column, in_features, size=in_features**-0.5),
        bias=normal(column) if bias else None,
        parts=parts,
        slots=slots,
        segments=segments,
        row_keys=row_keys,
    )


def assert_equal_to_reference(case: Case, found: dict[str, Tensor], *, roundings: float = ROUNDINGS) -> None:
    expected = case.reference()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        # sinks are float32 but add up products of 16-bit operands: they are as near as those
        assert_near(tensor.to(case.x.dtype), expected[name], roundings=roundings)
