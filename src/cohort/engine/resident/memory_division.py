"""The memory of one device, divided among the uses of one base model before anything of it is taken."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.adapters.bank import aligned_rank
from cohort.core.errors import InputError, Problem
from cohort.core.memory_records import MARGIN_SHARE
from cohort.core.source_location import Place
from cohort.core.units import format_bytes

__all__ = ["MemoryBudget", "MemoryWishes", "divide_memory"]

_LEAST_RANK = aligned_rank(1)


@dataclass(frozen=True, kw_only=True)
class MemoryWishes:
    """What the uses of a base would like to have, in bytes.

    Attributes:
        free_bytes: What the device has free before the model is loaded.
        base_bytes: The frozen weights.
        pass_bytes: The largest pass; one computes at a time.
        served_bytes: Adapters that are served.
        client_bytes: Models of clients.
        cache_bytes: Keys and values; what was asked for, or the most that is useful.
        is_cache_asked: Whether it was asked for, and so is not to be less.
        least_cache_bytes: One block.
        row_bytes: A rank row of the bank that sweeps train in, of a plain adapter of all linears.
        num_slots, rank: Trials of sweeps at once, and the rank that there should be room for in each.
    """

    free_bytes: int
    base_bytes: int
    pass_bytes: int
    served_bytes: int
    client_bytes: int
    cache_bytes: int
    is_cache_asked: bool
    least_cache_bytes: int
    row_bytes: int
    num_slots: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """What each use has.

    Attributes:
        cache_bytes: Keys and values.
        rank_rows: Of the bank that sweeps train in.
        sweep_bytes: That bank.
    """

    wishes: MemoryWishes
    cache_bytes: int
    rank_rows: int

    @property
    def sweep_bytes(self) -> int:
        return self.rank_rows * self.wishes.row_bytes

    @property
    def note(self) -> str:
        """The plan in a line."""
        w = self.wishes
        parts = _parts(w, cache_bytes=self.cache_bytes, sweep_bytes=self.sweep_bytes)
        total = sum(num_bytes for _, num_bytes in parts)
        words = ", ".join(f"{name} {format_bytes(num_bytes)}" for name, num_bytes in parts if num_bytes)
        return f"memory: {words}; together {format_bytes(total)} of {format_bytes(w.free_bytes)}"


def divide_memory(wishes: MemoryWishes, *, where: Place) -> MemoryBudget:
    """Return what each use gets: what is fixed first, then the bank of sweeps and keys and values from the rest.

    Neither of these two takes more than half of the rest, unless the other needs less.

    Raises:
        InputError: the rest holds not even an adapter of the least rank and one block, or less than was asked for.
    """
    w = wishes
    fixed = w.base_bytes + w.pass_bytes + w.served_bytes + w.client_bytes
    rest = int(w.free_bytes * (1 - MARGIN_SHARE)) - fixed
    wanted = w.num_slots * aligned_rank(w.rank)
    least_rows = _LEAST_RANK * w.row_bytes
    cache = w.cache_bytes
    if not w.is_cache_asked:
        cache = min(cache, max(w.least_cache_bytes, rest // 2, rest - wanted * w.row_bytes))
    rows = min(wanted, max(0, rest - cache) // w.row_bytes // _LEAST_RANK * _LEAST_RANK)
    if rows < _LEAST_RANK or cache < w.least_cache_bytes:
        parts = _parts(w, cache_bytes=max(cache, w.least_cache_bytes), sweep_bytes=least_rows)
        words = " + ".join(f"{format_bytes(num_bytes)} ({name})" for name, num_bytes in parts if num_bytes)
        needed = sum(num_bytes for _, num_bytes in parts)
        raise InputError(
            Problem(
                where=where,
                found=f"{words} = {format_bytes(needed)} at least, for adapters of rank {_LEAST_RANK}",
                allowed=f"{format_bytes(w.free_bytes * (1 - MARGIN_SHARE))}, which the device has free",
                hint="Lower --kv-cache-gib, --max-loras, --max-lora-rank or --max-trained-models, or leave sweeps to "
                "a process of their own.",
            )
        )
    return MemoryBudget(wishes=w, cache_bytes=cache, rank_rows=rows)


def _parts(wishes: MemoryWishes, *, cache_bytes: int, sweep_bytes: int) -> list[tuple[str, int]]:
    return [
        ("base model", wishes.base_bytes),
        ("passes", wishes.pass_bytes),
        ("served adapters", wishes.served_bytes),
        ("models of clients", wishes.client_bytes),
        ("keys and values", cache_bytes),
        ("sweeps", sweep_bytes),
    ]
