"""Which slot of a bank has which rank rows, and for what adapter: whole numbers, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import CohortError
from cohort.kernels.packed_linear import SlotTable

__all__ = ["ROW_ALIGNMENT", "BankFullError", "RankRowSlots", "RowsMove", "aligned_rank"]

ROW_ALIGNMENT = 16
"""Tiles of the GPU kernels read 16 rank rows at a time; padding rows stay zero."""


class BankFullError(CohortError):
    """No free slot, or no free run of rank rows, for another adapter."""


def aligned_rank(r: int) -> int:
    """Return what ``r`` rank rows of one adapter take in a bank."""
    return -(-r // ROW_ALIGNMENT) * ROW_ALIGNMENT


@dataclass(frozen=True)
class RowsMove:
    """Rank rows ``old : old + size`` that go to ``new``, below them."""

    old: int
    new: int
    size: int


class RankRowSlots:
    """A slot is a contiguous run of rank rows; first fit, and gaps are closed where no run is long enough."""

    def __init__(self, *, num_slots: int, num_rank_rows: int) -> None:
        """Have room for ``num_slots`` adapters whose ranks, each rounded up to 16, are ``num_rank_rows`` together."""
        self.num_slots, self.num_rank_rows = num_slots, aligned_rank(num_rank_rows)
        self._specs: dict[int, AdapterSpec] = {}
        self._starts: dict[int, int] = {}
        # asked for by every pass, and the same until adapters come or go
        self._table: SlotTable | None = None

    @property
    def occupied(self) -> tuple[int, ...]:
        """Slots in use, ascending."""
        return tuple(sorted(self._specs))

    def spec(self, slot: int) -> AdapterSpec:
        return self._specs[slot]

    def start(self, slot: int) -> int:
        """Return the first rank row of ``slot``."""
        return self._starts[slot]

    def state_rows(self, slot: int) -> slice:
        """Return the rank rows of the state of ``slot``, padding left out."""
        spec, start = self._specs[slot], self._starts[slot]
        return slice(start + spec.first_state_row, start + spec.num_rows)

    def factor_rows(self, slot: int) -> slice:
        """Return the rank rows that products read."""
        start = self._starts[slot]
        return slice(start, start + self._specs[slot].num_factor_rows)

    def padded_rows(self, slot: int) -> slice:
        """Return all that the slot takes."""
        start = self._starts[slot]
        return slice(start, start + aligned_rank(self._specs[slot].num_rows))

    def table(self) -> SlotTable:
        """Return the slots as the linears know them; the same object until adapters come or go."""
        if self._table is None:
            slots = range(self.num_slots)
            specs = [self._specs.get(slot) for slot in slots]
            self._table = SlotTable(
                row_starts=tuple(self._starts.get(slot, 0) for slot in slots),
                ranks=tuple(spec.num_factor_rows if spec else 0 for spec in specs),
                scales=tuple(spec.scale if spec else 0.0 for spec in specs),
                dropouts=tuple(spec.lora_dropout if spec else 0.0 for spec in specs),
            )
        return self._table

    def fits(self, spec: AdapterSpec) -> bool:
        free = self.num_rank_rows - sum(aligned_rank(other.num_rows) for other in self._specs.values())
        return len(self._specs) < self.num_slots and aligned_rank(spec.num_rows) <= free

    def moves_for(self, spec: AdapterSpec) -> Sequence[RowsMove]:
        """Return what has to move, in this order, before :meth:`take` finds a run of rows for ``spec``.

        Raises:
            BankFullError: there is no room for it.
        """
        if not self.fits(spec):
            raise BankFullError(
                f"no room for an adapter of rank {spec.num_rows}: {len(self._specs)} of {self.num_slots} slots and "
                f"{sum(other.num_rows for other in self._specs.values())} of {self.num_rank_rows} rank rows are in use"
            )
        if self._free_start(spec.num_rows) is not None:
            return ()
        moves, start = [], 0
        for slot in self._by_start():
            old, size = self._starts[slot], aligned_rank(self._specs[slot].num_rows)
            if old != start:
                moves.append(RowsMove(old, start, size))
                self._starts[slot] = start
            start += size
        self._table = None
        return moves

    def take(self, spec: AdapterSpec) -> int:
        """Return the lowest free slot, with a run of rows for ``spec``."""
        start = self._free_start(spec.num_rows)
        assert start is not None, "moves_for() made room"
        slot = next(slot for slot in range(self.num_slots) if slot not in self._specs)
        self._specs[slot], self._starts[slot] = spec, start
        self._table = None
        return slot

    def free(self, slot: int) -> None:
        del self._specs[slot], self._starts[slot]
        self._table = None

    def _by_start(self) -> list[int]:
        return sorted(self._starts, key=lambda slot: self._starts[slot])

    def _free_start(self, num_rows: int) -> int | None:
        """First fit: the lowest start of a free run of rank rows."""
        needed, start = aligned_rank(num_rows), 0
        for slot in self._by_start():
            if self._starts[slot] - start >= needed:
                return start
            start = self._starts[slot] + aligned_rank(self._specs[slot].num_rows)
        return start if self.num_rank_rows - start >= needed else None
