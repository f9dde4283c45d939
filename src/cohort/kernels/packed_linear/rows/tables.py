"""Which rank rows each row of a short stream multiplies: one entry for each row.

Shapes:  T rows of the stream
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.core.errors import SegmentError
from cohort.kernels.packed_linear.tables import SlotTable
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import pinned

__all__ = ["MOST_ROWS", "RowTables"]

MOST_ROWS = 256
"""Up to here a program for each row reads its adapter's factors itself; longer streams have rows to share them."""


class RowTables:
    """Device tables of one short stream. The buffer keeps its place when its contents change, for CUDA graphs.

    Attributes:
        rank_class: Rank rows that a program holds: a power of two, at least 16 and at least every rank.
        side: A stream for what may run next to frozen products while a graph is recorded; None for one after the other.
    """

    def __init__(
        self, segments: SegmentTable, slots: SlotTable, *, device: torch.device | str, rank_class: int | None = None
    ) -> None:
        """Describe ``segments``; with a ``rank_class`` also wider adapters may come by :meth:`update`."""
        self.num_rows, self.num_slots = segments.num_rows, slots.num_slots
        widest = max(max(slots.ranks, default=0), 1)
        self.rank_class = rank_class or max(16, 1 << (widest - 1).bit_length())
        self._device = torch.device(device)
        self.side: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None
        self._host: Tensor | None = None
        self._rows_T4: Tensor | None = None
        self._described = segments, slots
        self._sent: tuple[tuple[int, ...], SlotTable] | None = None

    @property
    def rows_T4(self) -> Tensor:
        """int32 [T, 4] on the device: first rank row, rank (0: no adapter), scale as float32 bits, 1 + slot (0: none).

        Sent there when it is first asked for: a pass that a graph computes has tables of its own.
        """
        if self._rows_T4 is None:
            self._rows_T4 = torch.zeros(self.num_rows, 4, dtype=torch.int32, device=self._device)
            host = torch.zeros(self.num_rows, 4, dtype=torch.int32)
            self._host = pinned(host) if self._device.type == "cuda" else host
            self._send()
        return self._rows_T4

    def update(self, segments: SegmentTable, slots: SlotTable) -> None:
        """Describe another stream of equally many rows.

        Raises:
            SegmentError: it has more rows or slots, or a rank above the class.
        """
        if (
            segments.num_rows != self.num_rows
            or slots.num_slots != self.num_slots
            or max(slots.ranks, default=0) > self.rank_class
        ):
            raise SegmentError(
                f"these tables are for {self.num_rows} rows, {self.num_slots} slots and ranks up to {self.rank_class}; "
                f"the stream has {segments.num_rows} rows, {slots.num_slots} slots and ranks up to "
                f"{max(slots.ranks, default=0)}: build new tables"
            )
        self._described = segments, slots
        if self._rows_T4 is not None:
            self._send()

    def _send(self) -> None:
        assert self._rows_T4 is not None, "allocated before"
        assert self._host is not None, "allocated before"
        segments, slots = self._described
        # between two tokens of the same sequences nothing changes
        if self._sent is not None and self._sent[0] == segments.offsets and self._sent[1] is slots:
            return
        if self._copied is not None:
            self._copied.synchronize()  # the last transfer still reads the pinned memory
        self._host.copy_(torch.from_numpy(_entries(segments, slots)))
        self._sent = segments.offsets, slots
        self._rows_T4.copy_(self._host, non_blocking=True)
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record()


def _entries(segments: SegmentTable, slots: SlotTable) -> NDArray[np.int32]:
    of_slots = np.zeros((slots.num_slots, 4), dtype=np.int32)
    of_slots[:, 0], of_slots[:, 1] = slots.row_starts, slots.ranks
    of_slots[:, 3] = np.arange(1, slots.num_slots + 1)
    of_slots[:, 2] = np.asarray(slots.scales, dtype=np.float32).view(np.int32)
    entries = np.zeros((segments.num_rows, 4), dtype=np.int32)
    entries[: segments.num_adapter_rows] = np.repeat(of_slots, np.diff(segments.offsets), axis=0)
    return entries
