"""Device tables that tell each program of the grouped kernels which rows, rank rows and scale are its own.

One buffer serves every linear of a step: it is built on the host from the SegmentTable and the SlotTable and copied in
one transfer, so launches are O(1) in the number of adapters and no device value ever decides a launch. The buffer
keeps its place and size when its contents change, so a captured CUDA graph reads the current pack.

A table is int32 ``[1 + capacity, 8]``: the number of entries first, then one entry a row. Tiles are cut from each
slot's own first row, never from the stream's, so what a slot computes does not depend on its neighbours.

Shapes:  T rows of the stream · Z slots · r true rank
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.core.errors import SegmentError
from cohort.kernels.dropout import keep_threshold
from cohort.kernels.packed_linear.choice.tiles import rows_per_chunk
from cohort.kernels.packed_linear.launch.slot_columns import slot_columns
from cohort.kernels.packed_linear.tables import SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import pinned

__all__ = ["ENTRY_WIDTH", "OWNER_WIDTH", "PRODUCT_ROWS", "WIDEST_RANK", "LaunchTables", "RankPass", "rank_class"]

ENTRY_WIDTH = 8
OWNER_WIDTH = 8
# Rows of a tile of the frozen product that adds the LoRA term itself; cut from the stream's first row.
PRODUCT_ROWS = 128
# A program holds this many ranks; wider adapters take further passes over their rows.
WIDEST_RANK = 128
# The last field of an entry where a program's sums go into a sink: added, or written over what is there. From 0 on it
# is the entry of ``sums`` whose slot's chunks the last of them adds up.
_ADD, _WRITE = -1, -2


def rank_class(rank: int) -> int:
    """Return the padded rank (16, 32, 64 or 128) that a slot of ``rank`` computes with: its own rank alone decides."""
    return max(16, 1 << (min(rank, WIDEST_RANK) - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class RankPass:
    """The tables of ranks ``[128 i, 128 (i + 1))`` of every slot; one pass unless some rank is above 128.

    Attributes:
        tiles: Entries of at most ``tile_rows`` rows.
        chunks: Entries of the rows whose weight gradients one program adds up.
        sums: One entry for each slot whose weight gradients come from several chunks: first rank row among what chunks
            leave, chunks, rank row in the bank, rank, the first of the chunks, 0, rank rows that a chunk leaves, into
            the sink how.
        slots: One entry for each slot with rows and ranks, in row order.
        owners: int32 [stream tiles of PRODUCT_ROWS rows, OWNER_WIDTH]: the first and the past-the-last entry of
            ``slots`` with rows in the tile (equal where there is none), then what the first says (first row, row after
            the last, rank row, rank, scale; zeros where there is none), so that no load waits for another.
        max_class: The widest padded rank among the slots.
        num_tiles, num_chunks, num_sums: Entries to launch for (the capacities, under a fixed launch).
        num_part_rows: Rank rows that chunks leave to such sums.
    """

    tiles: Tensor
    chunks: Tensor
    sums: Tensor
    slots: Tensor
    owners: Tensor
    max_class: int
    num_tiles: int
    num_chunks: int
    num_sums: int
    num_part_rows: int


@dataclass(frozen=True)
class _Blocks:
    """Host image of one pass's tables."""

    tiles: NDArray[np.int32]
    chunks: NDArray[np.int32]
    sums: NDArray[np.int32]
    slots: NDArray[np.int32]
    owners: NDArray[np.int32]

    @property
    def tables(self) -> tuple[NDArray[np.int32], ...]:
        """All of them in the order of the buffer."""
        return (self.tiles, self.chunks, self.sums, self.slots, self.owners)


def _flat(blocks: list[_Blocks], columns: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate([*(table.reshape(-1) for block in blocks for table in block.tables), columns])


class LaunchTables:
    """The tables of one stream layout on one device. Build once per step, share among all its linears.

    Args:
        segments, slots: What the tables describe.
        device: Where they are read.
        tile_rows: Rows of a forward tile, a power of two of at least 16.
        chunk_rows: Rows whose weight gradients one program adds up where a slot has no more
            (:func:`~.choice.tiles.rows_per_chunk`), a multiple of 64.
        fixed_launch: Launch for the most tiles that ``num_rows`` rows and this many slots can need, so that
            :meth:`update` may change the layout under a captured CUDA graph.
        exact: Cut chunks from single samples, so that a slot's weight gradients are sums over its samples in their
            order however a step is cut into passes; the linears then take the launches of
            :mod:`~cohort.kernels.packed_linear.exact`.
        most_samples: Most samples of adapters of a later layout (``exact`` with ``fixed_launch``).
        most_rank: Widest rank of a later layout (with ``fixed_launch``).
        drops: Whether a later layout may have dropout (with ``fixed_launch``).
        fresh_slots: Slots whose weight gradients are written over what their sinks hold instead of added to it, where
            they have samples: the first pass of an optimizer step needs no zeroed sinks and reads none.

    Attributes:
        slot_columns: As :func:`~cohort.kernels.packed_linear.launch.slot_columns.slot_columns` returns them.
    """

    def __init__(
        self,
        segments: SegmentTable,
        slots: SlotTable,
        *,
        device: torch.device | str,
        tile_rows: int = 64,
        chunk_rows: int = 1024,
        fixed_launch: bool = False,
        exact: bool = False,
        most_samples: int = 0,
        most_rank: int = 0,
        drops: bool = False,
        fresh_slots: Collection[int] = (),
    ) -> None:
        self.exact = exact
        self._most_samples = max(most_samples, len(segments.samples)) if exact else 0
        self.device = torch.device(device)
        self.tile_rows, self.chunk_rows, self.fixed_launch = tile_rows, chunk_rows, fixed_launch
        self.num_rows, self.num_slots = segments.num_rows, slots.num_slots
        self.max_rank = max(most_rank, *slots.ranks, 0)
        self.num_passes = max(1, -(-self.max_rank // WIDEST_RANK))
        self.has_dropout = drops or any(slots.dropouts)
        self._slots, self.fresh_slots = slots, frozenset(fresh_slots)
        blocks = self._blocks(segments, slots, fresh_slots)
        columns = self._columns(segments, slots)
        host = torch.from_numpy(_flat(blocks, columns))
        self._host = pinned(host) if self.device.type == "cuda" else host
        self._buffer = self._host.to(self.device, non_blocking=True)
        self._copied = _record_event(self.device)
        self.passes = tuple(self._views(blocks))
        self.slot_columns = self._buffer[-len(columns) :]
        self._counters: Tensor | None = None

    @property
    def num_columns(self) -> int:
        """Columns of an intermediate S: the widest slot's padded rank, all passes together."""
        return sum(rank_pass.max_class for rank_pass in self.passes)

    @property
    def num_rank_rows(self) -> int:
        """Rank rows of the bank up to the end of its last adapter, in steps of 16."""
        slots = self._slots
        ends = (start + rank for start, rank in zip(slots.row_starts, slots.ranks, strict=True) if rank > 0)
        return -(-max(ends, default=0) // 16) * 16

    @property
    def slots_are_aligned(self) -> bool:
        """Whether each adapter begins at a multiple of 16 rank rows, as in a bank."""
        return all(start % 16 == 0 for start in self._slots.row_starts)

    def counters(self, count: int) -> Tensor:
        """Return at least ``count`` int32 zeros that a launch leaves as zeros: one stream at a time uses them."""
        if self._counters is None or self._counters.numel() < count:
            self._counters = torch.zeros(max(count, 4096), dtype=torch.int32, device=self.device)
        return self._counters

    def update(self, segments: SegmentTable, slots: SlotTable, *, fresh_slots: Collection[int] = ()) -> None:
        """Describe another layout of equally many rows and slots in the same buffer (needs ``fixed_launch``).

        Raises:
            SegmentError: the new layout needs another launch: more rows, slots, a wider rank class or first dropout.
        """
        fits = segments.num_rows == self.num_rows and slots.num_slots == self.num_slots
        widest = max(slots.ranks, default=0)
        if (
            not self.fixed_launch
            or not fits
            or widest > self.max_rank
            or (any(slots.dropouts) and not self.has_dropout)
        ):
            dropout = "" if self.has_dropout else ", no dropout"
            fixed = "" if self.fixed_launch else ", one layout only"
            raise SegmentError(
                f"these tables were built for {self.num_rows} rows, {self.num_slots} slots, ranks up to {self.max_rank}"
                f"{dropout}{fixed}; the new layout has {segments.num_rows} rows, {slots.num_slots} slots, ranks up to "
                f"{widest}: build new tables"
            )
        self._slots, self.fresh_slots = slots, frozenset(fresh_slots)
        blocks = self._blocks(segments, slots, fresh_slots)
        if self._copied is not None:
            self._copied.synchronize()  # the last transfer still reads the pinned memory
        columns = self._columns(segments, slots)
        self._host.copy_(torch.from_numpy(_flat(blocks, columns)))
        self._buffer.copy_(self._host, non_blocking=True)
        self._copied = _record_event(self.device)

    def _columns(self, segments: SegmentTable, slots: SlotTable) -> NDArray[np.int32]:
        num_samples = self._most_samples if self.exact else None
        return slot_columns(segments, slots, fresh_slots=self.fresh_slots, num_samples=num_samples)

    def _views(self, blocks: list[_Blocks]) -> list[RankPass]:
        views, start = [], 0
        for index, block in enumerate(blocks):
            tensors = []
            for table in block.tables:
                tensors.append(self._buffer[start : start + table.size].view(table.shape))
                start += table.size
            launches = [int(t[0, 0]) for t in (block.tiles, block.chunks, block.sums)]
            max_class = rank_class(max(self.max_rank - index * WIDEST_RANK, 1))
            part_rows = int((block.sums[1:, 1] * block.sums[1:, 6]).sum())
            if self.fixed_launch:
                # only slots of more than one chunk are summed, and n > c rows make at most 2 n / c + 1 < 3 n / c chunks
                most_sums = min(self.num_slots, self.num_rows // (self.chunk_rows + 1))
                part_rows = 3 * self.num_rows // self.chunk_rows * max_class if most_sums else 0
                if self.exact:
                    # and so are slots of more than one sample
                    most_sums = self.num_slots
                    part_rows = (self._most_samples + 3 * self.num_rows // self.chunk_rows) * max_class
                launches = [len(block.tiles) - 1, len(block.chunks) - 1, most_sums]
            views.append(
                RankPass(
                    tiles=tensors[0],
                    chunks=tensors[1],
                    sums=tensors[2],
                    slots=tensors[3],
                    owners=tensors[4],
                    max_class=max_class,
                    num_tiles=launches[0],
                    num_chunks=launches[1],
                    num_sums=launches[2],
                    num_part_rows=part_rows,
                )
            )
        return views

    def _blocks(self, segments: SegmentTable, slots: SlotTable, fresh_slots: Collection[int]) -> list[_Blocks]:
        if segments.num_slots != slots.num_slots:
            raise SegmentError(f"segments know {segments.num_slots} slots but the bank has {slots.num_slots}")
        fresh = frozenset(fresh_slots)
        return [self._block(segments, slots, first_rank=i * WIDEST_RANK, fresh=fresh) for i in range(self.num_passes)]

    def _block(self, segments: SegmentTable, slots: SlotTable, *, first_rank: int, fresh: frozenset[int]) -> _Blocks:
        tiles: list[tuple[int, ...]] = []
        chunks: list[tuple[int, ...]] = []
        sums: list[tuple[int, ...]] = []
        owning: list[tuple[int, ...]] = []
        part_rows = 0
        samples: list[list[slice]] = [[] for _ in range(slots.num_slots)]
        for span in segments.samples if self.exact else ():
            if span.slot >= 0:
                samples[span.slot].append(slice(span.start, span.stop))
        # A sample without rows is one that nothing reads. Where all samples of a fresh slot are so, zeros are written:
        # nothing else overwrites the gradients of the step before.
        emptied = fresh & {span.slot for span in segments.samples if span.start == span.stop}
        for slot in range(slots.num_slots):
            rows = segments.rows(slot)
            rank = min(max(slots.ranks[slot] - first_rank, 0), WIDEST_RANK)
            meaning = _slot_fields(slots, slot=slot, rank=rank, first_rank=first_rank)
            tiles += [(start, stop, *meaning, _ADD) for start, stop in _cut(rows, self.tile_rows)]
            if rank > 0 and rows.stop > rows.start:
                owning.append((rows.start, rows.stop, *meaning, _ADD))
            into_sink = _WRITE if slot in fresh else _ADD
            cuts = [
                cut
                for span in (samples[slot] if self.exact else [rows])
                for cut in _cut(span, rows_per_chunk(span.stop - span.start, chunk_rows=self.chunk_rows))
            ]
            if not cuts and slot in emptied and rank > 0:
                cuts = [(rows.start, rows.start)]
            first_chunk = len(chunks)
            summed = len(cuts) > 1 and rank > 0
            chunks += [(start, stop, *meaning, len(sums) if summed else into_sink) for start, stop in cuts]
            if summed:
                left = rank_class(rank)
                sums.append((part_rows, len(cuts), *meaning[:2], first_chunk, 0, left, into_sink))
                part_rows += len(cuts) * left
        filler = slice(segments.num_adapter_rows, segments.num_rows)
        nothing = (0, 0, 0, 0, 0, _ADD)
        tiles += [(start, stop, *nothing) for start, stop in _cut(filler, self.tile_rows)]
        chunks += [(start, stop, *nothing) for start, stop in _cut(filler, self.chunk_rows)]
        # a chunk but for the last of a slot, or of a sample, has at least half of chunk_rows
        owners = self._most_samples if self.exact else self.num_slots
        most_tiles = self.num_rows // self.tile_rows + self.num_slots + 1
        most_chunks = self.num_rows // (self.chunk_rows // 2) + owners + 1
        return _Blocks(
            tiles=_table(tiles, capacity=most_tiles),
            chunks=_table(chunks, capacity=most_chunks),
            sums=_table(sums, capacity=self.num_slots),
            slots=_table(owning, capacity=max(self.num_slots, 1)),
            owners=_owners(owning, num_rows=self.num_rows),
        )


def _slot_fields(slots: SlotTable, *, slot: int, rank: int, first_rank: int) -> tuple[int, ...]:
    """Rank row, rank, scale, threshold and factor of kept features, as int32 bits."""
    probability = slots.dropouts[slot]
    threshold = min(keep_threshold(probability), (1 << 32) - 1)
    factor = 1.0 / (1.0 - probability)
    reals = np.array([slots.scales[slot], factor], dtype=np.float32).view(np.int32)
    bits = int(np.array([threshold], dtype=np.uint32).view(np.int32)[0])
    return (slots.row_starts[slot] + first_rank, rank, int(reals[0]), bits, int(reals[1]))


def _owners(owning: list[tuple[int, ...]], *, num_rows: int) -> NDArray[np.int32]:
    """Return which entries of ``owning`` have rows in each tile of the stream, and the first of them."""
    starts = np.arange(0, num_rows, PRODUCT_ROWS)
    first = np.searchsorted([entry[1] for entry in owning], starts, side="right")
    last = np.searchsorted([entry[0] for entry in owning], starts + PRODUCT_ROWS, side="left")
    owners = np.zeros((len(starts), OWNER_WIDTH), dtype=np.int32)
    owned = last > first
    owners[owned, 0], owners[owned, 1] = first[owned], last[owned]
    if owning:
        fields = np.array(owning, dtype=np.int32)[:, :5]
        owners[owned, 2:7] = fields[first[owned]]
    return owners


def _cut(rows: slice, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, rows.stop)) for start in range(rows.start, rows.stop, size)]


def _table(entries: list[tuple[int, ...]], *, capacity: int) -> NDArray[np.int32]:
    table = np.zeros((1 + capacity, ENTRY_WIDTH), dtype=np.int32)
    table[0, 0] = len(entries)
    if entries:
        table[1 : 1 + len(entries)] = entries
    return table


def _record_event(device: torch.device) -> torch.cuda.Event | None:
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event
