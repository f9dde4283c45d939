"""How much fits: slots, rank rows and tokens of an executor, by exact arithmetic where there is any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError, Problem
from cohort.core.units import format_bytes
from cohort.engine.machine import Machine
from cohort.engine.run_store_records import JsonValue
from cohort.scheduling.admission import Capacity
from cohort.training.executor import ExecutorSettings
from cohort.training.trial import TrialSpec

__all__ = ["SizeWish", "Sizes", "choose_sizes", "facts_of", "rank_row_bytes"]

# a pack on two CPU cores stops gaining from about a thousand tokens on; beyond, latency of a step only grows
CPU_TOKENS = 2048
# one H200 reaches its matrix ceiling from about 8,192 tokens a pass
GPU_TOKENS = 16384
MOST_SLOTS = 64
# shares of the memory that is free beside the base model; the rest is activations and what the allocator wastes
BANK_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the executor and what admission counts against."""

    executor: ExecutorSettings
    capacity: Capacity


@dataclass(frozen=True, kw_only=True)
class SizeWish:
    """Sizes to use where the machine allows it; None leaves one to :func:`choose_sizes`.

    Attributes:
        token_budget: Most tokens of a micro-batch.
        num_slots, rank_rows: Of the bank.
    """

    token_budget: int | None = None
    num_slots: int | None = None
    rank_rows: int | None = None

    @classmethod
    def recorded(cls, facts: Mapping[str, JsonValue]) -> SizeWish:
        """Return the sizes a run began with: who is resident when follows from them, and free memory varies."""
        found = {name: facts.get(name) for name in ("token_budget", "num_slots", "rank_rows")}
        return cls(**{name: value for name, value in found.items() if isinstance(value, int)})


def rank_row_bytes(layout: AdapterLayout, *, has_compute_copy: bool) -> int:
    """Return the bytes one rank row takes in the bank: weight, gradient and two moments in float32, and a bf16 copy."""
    bytes_per_entry = 4 * 4 + (2 if has_compute_copy else 0)
    return layout.width * bytes_per_entry


def choose_sizes(
    specs: Sequence[TrialSpec],
    *,
    layout: AdapterLayout,
    machine: Machine,
    longest_row: int,
    wish: SizeWish,
) -> Sizes:
    """Return sizes that hold as many of ``specs`` at once as memory and a full machine allow.

    Args:
        specs: All trials of the task.
        layout: Adapted linears.
        machine: Device and its free memory, base model loaded.
        longest_row: Tokens of the longest row.
        wish: Sizes to use where memory allows it.

    Raises:
        InputError: not even the largest rank fits.
    """
    on_gpu = machine.device.type == "cuda"
    tokens = wish.token_budget or (GPU_TOKENS if on_gpu else CPU_TOKENS)
    row_bytes = rank_row_bytes(layout, has_compute_copy=machine.dtype == "bfloat16")
    affordable = int(machine.memory_bytes * BANK_SHARE / row_bytes)
    by_need = sorted((aligned_rank(spec.adapter.r) for spec in specs), reverse=True)
    if affordable < by_need[0]:
        raise InputError(
            Problem(
                where="search.space.r",
                found=f"rank {max(spec.adapter.r for spec in specs)}, whose training state takes "
                f"{format_bytes(by_need[0] * row_bytes)}",
                allowed=f"ranks up to {affordable}, which fit in {format_bytes(machine.memory_bytes)} of free memory",
                mend="Choose smaller ranks, fewer target_modules, or a machine with more memory.",
            )
        )
    num_slots = wish.num_slots or min(len(specs), MOST_SLOTS)
    rank_rows = min(wish.rank_rows or sum(by_need[:num_slots]), affordable // 16 * 16)
    return Sizes(
        executor=ExecutorSettings(
            num_slots=num_slots,
            num_rank_rows=rank_rows,
            token_budget=tokens,
            evaluation_token_budget=2 * tokens,
        ),
        capacity=Capacity(rank_rows=rank_rows, num_slots=num_slots, tokens_per_step=max(tokens, longest_row)),
    )


def facts_of(sizes: Sizes) -> Mapping[str, int]:
    """Return what the run record says about sizes."""
    return {
        "num_slots": sizes.executor.num_slots,
        "rank_rows": sizes.executor.num_rank_rows,
        "token_budget": sizes.executor.token_budget,
    }
