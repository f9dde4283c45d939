"""The packs that the kernel benchmarks run: Llama-3.1-8B's linears, adapters of mixed ranks, uneven segments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.kernels.backend import Backend, implementation
from cohort.kernels.packed_linear import LaunchTables, LoraPart, PaddedRows, SlotTable
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice, choose_tiles
from cohort.kernels.segments import SegmentTable
from cohort.models.weight_formats.kinds.plain import FrozenLinear

__all__ = ["LINEARS", "MIXED_RANKS", "Pack", "build_pack", "uneven_lengths"]

# name: (input width, output widths of the siblings that share it)
LINEARS = {
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gateup": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
MIXED_RANKS = (8, 16, 32, 64)


@dataclass(kw_only=True)
class Pack:
    """One linear, its adapters and one stream with a gradient of its output.

    ``room`` is what x lies in where the linear's product is augmented.
    """

    x_TK: Tensor
    dy_TN: Tensor
    frozen: FrozenLinear
    parts: tuple[LoraPart, ...]
    slots: SlotTable
    segments: SegmentTable
    tables: LaunchTables
    room: PaddedRows | None = None

    def zero_sinks(self) -> None:
        """Forget the gradients so far."""
        for part in self.parts:
            for sink in (part.grad_a_RK, part.grad_b_RN):
                assert sink is not None, "benchmark packs have sinks"
                sink.zero_()


def uneven_lengths(num_rows: int, count: int, *, seed: int = 0) -> list[int]:
    """Return ``count`` segment lengths of 0.5 to 1.5 times their mean that fill ``num_rows`` rows."""
    draw = random.Random(seed)
    weights = [draw.uniform(0.5, 1.5) for _ in range(count)]
    ends = [round(num_rows * sum(weights[: i + 1]) / sum(weights)) for i in range(count)]
    return [b - a for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def build_pack(
    in_features: int,
    out_widths: Sequence[int],
    *,
    lengths: Sequence[int],
    ranks: Sequence[int],
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    row_stride: int | None = None,
    tile_rows: int = 64,
    chunk_rows: int = 1024,
    room_columns: int | None = None,
) -> Pack:
    """Return a pack of random values.

    Args:
        in_features, out_widths: The linear.
        lengths, ranks: Of the adapters.
        device, dtype: Of the pack.
        row_stride: Puts a bank's other linears between one rank row and the next.
        tile_rows, chunk_rows: Of the launch tables.
        room_columns: Columns to spare behind the weight, for an augmented product whatever the table of tiles says;
            None: as the table says.
    """
    num_rows, total = sum(lengths), sum(out_widths)
    starts, row = [], 0
    for rank in ranks:
        starts.append(row)
        row += -(-rank // 16) * 16
    scales, dropouts = (2.0,) * len(ranks), (0.0,) * len(ranks)
    slots = SlotTable(row_starts=tuple(starts), ranks=tuple(ranks), scales=scales, dropouts=dropouts)
    segments = SegmentTable.from_samples(lengths, slots=range(len(ranks)), num_slots=len(ranks), num_rows=num_rows)

    def strided(width: int, kind: torch.dtype, size: float) -> Tensor:
        view = torch.zeros(row, row_stride or width, device=device, dtype=kind)[:, :width]
        return view.normal_(std=size) if size else view

    parts, start = [], 0
    for width in out_widths:
        parts.append(
            LoraPart(
                a_RK=strided(in_features, dtype, in_features**-0.5),
                b_RN=strided(width, dtype, 0.05),
                grad_a_RK=strided(in_features, torch.float32, 0.0),
                grad_b_RN=strided(width, torch.float32, 0.0),
                column_start=start,
                module_key=12345 + start,
            )
        )
        start += width
    # gradients are written as in the first pass of a step, not added to those of an earlier one
    tables = LaunchTables(
        segments, slots, device=device, tile_rows=tile_rows, chunk_rows=chunk_rows, fresh_slots=range(len(ranks))
    )
    x, frozen, room = _input(tables, parts, in_features=in_features, dtype=dtype, room_columns=room_columns)
    return Pack(
        x_TK=x,
        dy_TN=torch.randn(num_rows, total, device=device, dtype=dtype),
        frozen=frozen,
        parts=tuple(parts),
        slots=slots,
        segments=segments,
        tables=tables,
        room=room,
    )


def _input(
    tables: LaunchTables,
    parts: Sequence[LoraPart],
    *,
    in_features: int,
    dtype: torch.dtype,
    room_columns: int | None,
) -> tuple[Tensor, FrozenLinear, PaddedRows | None]:
    """Return x, the frozen linear and the room that x is in, if it is in some."""
    device, widths = tables.device, [part.b_RN.shape[1] for part in parts]
    tiles, spare = None, 0
    if room_columns is not None:
        tiles = TileChoice(term_forward=TermPlace.AUGMENTED, augmented_columns=room_columns, augmented_rows=1)
        spare = room_columns
    elif len(widths) == 1 and device.type == "cuda":
        asked = choose_tiles(
            torch.cuda.get_device_name(device),
            in_features=in_features,
            out_widths=tuple(widths),
            num_rows=tables.num_rows,
        )
        fits = tables.num_rank_rows <= asked.augmented_columns and tables.num_rows >= asked.augmented_rows
        spare = asked.augmented_columns if asked.term_forward is TermPlace.AUGMENTED and fits else 0
    weight = torch.randn(sum(widths), in_features + spare, device=device, dtype=dtype) * in_features**-0.5
    frozen = FrozenLinear(weight, in_features=in_features)
    x = torch.randn(tables.num_rows, in_features, device=device, dtype=dtype)
    kernels = implementation("packed_linear", Backend.TRITON)
    room: PaddedRows | None = kernels.room_for(x, frozen=frozen, parts=parts, tables=tables, tiles=tiles)
    if room is None:
        return x, frozen, None
    room.rows_TK.copy_(x)
    return room.rows_TK, frozen, room
