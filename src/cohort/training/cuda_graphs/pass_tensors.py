"""The tensors that a recorded pass reads: all of them in one buffer, which one transfer fills before each replay.

Where Triton's kernels suit every layer, attention runs over the stream itself, as in a pass that is launched kernel by
kernel: its tiles are one more tensor. Other rules (soft-capped scores) pad their sequences.

Shapes:  T rows of the stream · M trained rows · S sequences · L greatest length of one · P padded rows (S + 1) L
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.adapters.bank import AdapterBank
from cohort.data.packing import UNTRAINED, HostStream, PackedBatch
from cohort.kernels.attention import RecordedTiles
from cohort.kernels.packed_linear import LaunchTables, SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import pinned
from cohort.models.attention import AttentionContext, RecordedAttention
from cohort.models.fixed_attention import FixedAttention, fixed_attention_rows
from cohort.models.pass_inputs.needed_rows import NeededRows, needed_segments
from cohort.training.cuda_graphs.pass_shape import PassShape

__all__ = ["PassTensors"]


class PassTensors:
    """What changes from pass to pass, at addresses that do not.

    Attributes:
        batch: The stream, as wide as the shape.
        lora: What the linears read of the bank and of each slot's rows.
        attention: Which rows attend to which.
        weights_T: What the loss of each row counts; 0 for rows that are not trained.
        needed: The trained rows, where the last layer computes no others behind its attention; None elsewhere.
    """

    def __init__(
        self,
        shape: PassShape,
        *,
        bank: AdapterBank,
        slots: SlotTable,
        pads_attention: bool,
        drops: bool = False,
        leaves_out_rows: bool = False,
    ) -> None:
        """Allocate them next to ``bank``, filled with rows that no slot has and nothing trains.

        Args:
            drops: Whether its rows have dropout keys.
            leaves_out_rows: Whether the last layer leaves out rows that are not trained.
        """
        self._shape, self._pads, self._drops = shape, pads_attention, drops
        device, num_rows = bank.weights_RD.device, shape.num_rows
        self._num_tiles = RecordedTiles.capacity(num_rows=num_rows, num_sequences=shape.num_sequences)
        num_padded = (shape.num_sequences + 1) * shape.length
        # tiles are three int32 each, in a buffer of int64
        of_attention = (num_padded, num_rows) if pads_attention else (-(-3 * self._num_tiles // 2), 0)
        of_dropout = num_rows if drops else 0
        # keys begin at a multiple of 16 bytes, as those of a launched pass do: kernels are compiled for that
        sizes = (num_rows, num_rows, num_rows, of_dropout, shape.num_trained, *of_attention, -(-num_rows // 2))
        host = torch.zeros(sum(sizes), dtype=torch.int64)
        self._host = pinned(host) if device.type == "cuda" else host
        self._staged = torch.zeros(sum(sizes), dtype=torch.int64, device=device)
        self._host_parts = [part.numpy() for part in self._host.split(sizes)]
        tokens_T, positions_T, targets_T, keys, rows_M, first, second, weights = self._staged.split(sizes)
        self.weights_T = weights.view(torch.float32)[:num_rows]
        nothing = _no_segments(num_rows, num_slots=slots.num_slots)
        self._tables = self._launch_tables(nothing, bank=bank, slots=slots)
        self.batch = PackedBatch(
            tokens_T=tokens_T,
            positions_T=positions_T,
            targets_T=targets_T,
            sequence_offsets=(0,),
            segments=nothing,
            trained_rows_M=rows_M,
            row_keys_T=keys if drops else None,
            trained_offsets=(0,),
        )
        self.attention = self._attend_by(first, second)
        self.lora = replace(bank.context(nothing, row_keys_T=self.batch.row_keys_T), tables=self._tables)
        self.needed: NeededRows | None = None
        self._needed_tables: LaunchTables | None = None
        if leaves_out_rows:
            no_segments = _no_segments(shape.num_trained, num_slots=slots.num_slots)
            self._needed_tables = self._launch_tables(no_segments, bank=bank, slots=slots)
            self.needed = NeededRows(
                rows_M=rows_M, num_used=shape.num_trained, segments=no_segments, tables=self._needed_tables
            )
        self._write(_empty_stream(num_rows, num_slots=slots.num_slots), divisors={})
        self._copied = torch.cuda.Event() if device.type == "cuda" else None
        self._send()

    def fill(
        self, stream: HostStream, *, slots: SlotTable, divisors: Mapping[int, int], fresh_slots: Collection[int]
    ) -> None:
        """Send ``stream`` to the device, ordered after the replays so far.

        Args:
            divisors: By slot, what the weights of its trained rows are divided by; other rows weigh 0.
            fresh_slots: Slots whose gradients overwrite what the bank holds.
        """
        if self._copied is not None:
            # the last transfer still reads the pinned memory
            self._copied.synchronize()
        self._write(stream, divisors=divisors)
        self._tables.update(stream.segments, self._known(slots), fresh_slots=fresh_slots)
        if self._needed_tables is not None:
            counts = np.diff(np.searchsorted(stream.trained_rows, stream.sequence_offsets)).tolist()
            read = needed_segments(stream.segments, counts, num_rows=self._shape.num_trained)
            self._needed_tables.update(read, self._known(slots), fresh_slots=fresh_slots)
        self._send()

    def _launch_tables(self, nothing: SegmentTable, *, bank: AdapterBank, slots: SlotTable) -> LaunchTables:
        return LaunchTables(
            nothing,
            self._known(slots),
            device=bank.weights_RD.device,
            fixed_launch=True,
            exact=bank.is_exact,
            most_samples=self._shape.num_sequences,
            drops=self._drops,
        )

    def _known(self, slots: SlotTable) -> SlotTable:
        """Return ``slots`` as the pass knows them: without the dropout of trials that it does not drop inputs of."""
        # most have none: a table of slots is checked when it is made, and a pass is filled for each step
        return slots if self._drops or not any(slots.dropouts) else replace(slots, dropouts=(0.0,) * slots.num_slots)

    def _attend_by(self, first: Tensor, second: Tensor) -> AttentionContext:
        shape = self._shape
        if self._pads:
            return FixedAttention(num_sequences=shape.num_sequences, length=shape.length, rows_P=first, places_T=second)
        table = first.view(torch.int32)[: 3 * self._num_tiles].view(-1, 3)
        return RecordedAttention(RecordedTiles(table, num_rows=shape.num_rows), num_positions=shape.length)

    def _write(self, stream: HostStream, *, divisors: Mapping[int, int]) -> None:
        tokens, positions, targets, keys, rows, *of_attention, weights = self._host_parts
        tokens[:], positions[:], targets[:] = stream.tokens, stream.positions, stream.targets
        if self._drops:
            keys[:] = 0 if stream.row_keys is None else stream.row_keys
        # the rest of the trained rows names the filler row at the end, whose loss and gradient are zero
        rows[: len(stream.trained_rows)] = stream.trained_rows
        rows[len(stream.trained_rows) :] = self._shape.num_rows - 1
        self._write_attention(stream.sequence_offsets, *of_attention)
        weight_of_row = weights.view(np.float32)[: self._shape.num_rows]
        weight_of_row[:] = 0.0
        for slot, divisor in divisors.items():
            own = stream.segments.rows(slot)
            weight_of_row[own] = np.where(stream.targets[own] != UNTRAINED, np.float32(1.0 / divisor), np.float32(0.0))

    def _write_attention(self, offsets: tuple[int, ...], first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        shape = self._shape
        if self._pads:
            first[:], second[:] = fixed_attention_rows(
                offsets, num_rows=shape.num_rows, num_sequences=shape.num_sequences, length=shape.length
            )
            return
        entries = RecordedTiles.entries(offsets, num_rows=shape.num_rows, capacity=self._num_tiles)
        first.view(np.int32)[: entries.size] = entries.reshape(-1)

    def _send(self) -> None:
        self._staged.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def _empty_stream(num_rows: int, *, num_slots: int) -> HostStream:
    zeros = np.zeros(num_rows, dtype=np.int64)
    return HostStream(
        tokens=zeros,
        positions=zeros,
        targets=np.full(num_rows, UNTRAINED, dtype=np.int64),
        trained_rows=np.zeros(0, dtype=np.int64),
        row_keys=None,
        sequence_offsets=(0,),
        segments=_no_segments(num_rows, num_slots=num_slots),
    )


def _no_segments(num_rows: int, *, num_slots: int) -> SegmentTable:
    return SegmentTable(num_rows=num_rows, offsets=(0,) * (num_slots + 1), samples=())
