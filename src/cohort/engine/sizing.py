"""How much fits: slots, rank rows and tokens of an executor, by exact arithmetic where there is any."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

__all__ = [
    "MemoryNeeds",
    "SizeWish",
    "Sizes",
    "choose_sizes",
    "estimated_needs",
    "facts_of",
    "rank_row_bytes",
    "too_large",
]

# a CPU core is as fast as it gets, within 7 %, from 512 to 4,096 tokens a pass; at 256 it is 10 % slower, at 128 23 %
# (benchmarks/results/token_budget_cpu.json). The upper half of that range keeps more trials with long rows resident.
CPU_TOKENS = 2048
# one H200 reaches its matrix ceiling from about 8,192 tokens a pass; below 4,096 it mostly waits for the host
GPU_TOKENS = (16384, 8192, 4096)
LEAST_TOKENS = 64
# as on a GPU, where a limit is set: from what fills the core to what may cost a quarter of its speed
CPU_SIZES = (2048, 1024, 512, 256)
# passes of fewer tokens are recorded as CUDA graphs: the host takes longer to launch them than the GPU to run them
GRAPH_TOKENS = 3072
# where trials have to wait for memory, recorded passes hold at most this share of it, or are none
GRAPH_SHARE, LEAST_GRAPH_TOKENS = 0.08, 512
MOST_SLOTS = 64
# on a GPU: what stays free, for fragments and estimates that are too low, and the loss head's logits and their gradient
MARGIN_SHARE = 0.08
LOSS_HEAD_BYTES = 5 << 29
# tokens of a usual training row: so many trials of batch size 1 fill a pass; a larger bank would be paid with states of
# parked trials that have to leave the device
USUAL_ROW = 200
# shares of the memory that is free beside the base model; the rest is activations and what the allocator wastes
BANK_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the executor, what admission counts against, and what parked trials may keep of the device's memory."""

    executor: ExecutorSettings
    capacity: Capacity
    device_shelf_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryNeeds:
    """What passes take beside base model and bank.

    Attributes:
        pass_bytes: Peak of a micro-batch of so many tokens, the largest evaluation that goes with it included.
        graph_bytes: What recorded passes of at most so many tokens hold for good.
        reserve_bytes: What the allocator holds beyond its own peak.
        margin_share: Of the memory, that stays free.
    """

    pass_bytes: Callable[[int], float]
    graph_bytes: Callable[[int], float] = lambda _: 0.0
    reserve_bytes: int = 0
    margin_share: float = MARGIN_SHARE

    def bytes_of(self, tokens: int) -> int:
        """Return the bytes of a launched micro-batch and, beside it, of the recorded ones."""
        return math.ceil(self.pass_bytes(tokens) + self.graph_bytes(min(GRAPH_TOKENS, tokens)))


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
    activation_bytes: int = 0,
    needs: MemoryNeeds | None = None,
) -> Sizes:
    """Return sizes that hold as many of ``specs`` at once as memory and a full machine allow.

    On a GPU tokens and bank share what is left beside the base model, :data:`MARGIN_SHARE` and the loss head: the most
    tokens a pass with which all trials fit at once, else the fewest that fill the machine, and fewer only when the
    largest rank would not fit otherwise. State is exact arithmetic; what a pass takes was measured (``needs``) or is an
    estimate from above. A CPU whose needs are known, because its user set a limit, is treated alike.

    Args:
        specs: All trials of the task.
        layout: Adapted linears.
        machine: Device and its free memory, base model loaded; less where the user's limit is lower.
        longest_row: Tokens of the longest row.
        wish: Sizes to use where memory allows it.
        activation_bytes: What one token of a training pass keeps until its backward pass, where ``needs`` are unknown.
        needs: What passes take, measured.

    Raises:
        InputError: not even the largest rank fits.
    """
    on_gpu = machine.device.type == "cuda"
    if on_gpu and needs is None:
        needs = estimated_needs(activation_bytes)
    row_bytes = rank_row_bytes(layout, has_compute_copy=machine.dtype == "bfloat16")
    by_need = sorted((aligned_rank(spec.adapter.r) for spec in specs), reverse=True)
    num_slots = wish.num_slots or min(len(specs), MOST_SLOTS)
    if needs is not None:
        room = int(machine.memory_bytes * (1 - needs.margin_share)) - needs.reserve_bytes
        tokens = _tokens(
            wish,
            room=room,
            row_bytes=row_bytes,
            by_need=by_need,
            needs=needs,
            sizes=GPU_TOKENS if on_gpu else CPU_SIZES,
        )
        room -= math.ceil(needs.pass_bytes(max(tokens, longest_row)))
    else:
        tokens = wish.token_budget or CPU_TOKENS
        room = int(machine.memory_bytes * BANK_SHARE)
    wanted = wish.rank_rows or _rows_of_a_pass(by_need[:num_slots], tokens, on_gpu)
    graph_tokens = 0
    if on_gpu and needs is not None:
        graph_tokens = _graph_tokens(needs, most=min(GRAPH_TOKENS, tokens), room=room, bank_bytes=wanted * row_bytes)
        room -= math.ceil(needs.graph_bytes(graph_tokens))
    affordable = max(0, room) // row_bytes
    if affordable < by_need[0]:
        raise InputError(
            too_large(
                max(spec.adapter.r for spec in specs), row_bytes=row_bytes, room=room, free_bytes=machine.memory_bytes
            )
        )
    rank_rows = min(wanted, affordable // 16 * 16)
    return Sizes(
        executor=ExecutorSettings(
            num_slots=num_slots,
            num_rank_rows=rank_rows,
            token_budget=tokens,
            evaluation_token_budget=2 * tokens,
            graph_tokens=graph_tokens,
        ),
        capacity=Capacity(rank_rows=rank_rows, num_slots=num_slots, tokens_per_step=max(tokens, longest_row)),
        device_shelf_bytes=(affordable - rank_rows) * row_bytes if on_gpu else 0,
    )


def too_large(rank: int, *, row_bytes: int, room: int, free_bytes: int) -> Problem:
    """Return what is wrong when the state of one adapter of ``rank`` does not fit into ``room`` bytes."""
    fitting = max(0, room) // (row_bytes * aligned_rank(1)) * aligned_rank(1)
    return Problem(
        where="search.space.r",
        found=f"rank {rank}, whose training state takes {format_bytes(aligned_rank(rank) * row_bytes)}",
        allowed=f"at most {format_bytes(max(0, room))}, which the smallest pass and the margin leave of "
        f"{format_bytes(free_bytes)} free beside the base model"
        + (f": ranks up to {fitting}" if fitting else ": too little for any rank"),
        mend=("Choose smaller ranks, fewer" if fitting else "Choose fewer")
        + " target_modules, a smaller dataset.max_length, a higher memory.limit where one is set, or a machine with "
        "more memory.",
    )


def _graph_tokens(needs: MemoryNeeds, *, most: int, room: int, bank_bytes: int) -> int:
    """Return up to how many tokens passes are recorded: all that pay, fewer where their memory is the bank's."""
    tokens = most
    while tokens >= LEAST_GRAPH_TOKENS:
        held = needs.graph_bytes(tokens)
        if room - held >= bank_bytes or held <= GRAPH_SHARE * room:
            return tokens
        tokens //= 2
    return 0


def estimated_needs(activation_bytes: int) -> MemoryNeeds:
    """Return what passes of a GPU take when nothing was measured, from above."""
    return MemoryNeeds(
        pass_bytes=lambda tokens: activation_bytes * tokens + LOSS_HEAD_BYTES,
        graph_bytes=lambda tokens: activation_bytes * tokens,
    )


def _tokens(
    wish: SizeWish,
    *,
    room: int,
    row_bytes: int,
    by_need: Sequence[int],
    needs: MemoryNeeds,
    sizes: Sequence[int],
) -> int:
    """Return the tokens of a micro-batch: of ``sizes`` the most with which all fit, else the last or fewer."""
    if wish.token_budget is not None:
        sizes = (wish.token_budget,)

    def left(tokens: int) -> int:
        return room - needs.bytes_of(tokens)

    tokens = next((size for size in sizes if left(size) >= sum(by_need) * row_bytes), sizes[-1])
    while tokens > LEAST_TOKENS and left(tokens) < by_need[0] * row_bytes:
        tokens //= 2
    return tokens


def _rows_of_a_pass(by_need: Sequence[int], tokens: int, on_gpu: bool) -> int:  # noqa: FBT001
    """Return rank rows for the trials of one pass: a GPU holds the trials that fill it, a CPU all."""
    most = max(1, tokens // USUAL_ROW) if on_gpu else len(by_need)
    return max(by_need[0], aligned_rank(round(sum(by_need) * min(1.0, most / len(by_need)))))


def facts_of(sizes: Sizes) -> Mapping[str, int]:
    """Return what the run record says about sizes."""
    return {
        "num_slots": sizes.executor.num_slots,
        "rank_rows": sizes.executor.num_rank_rows,
        "token_budget": sizes.executor.token_budget,
    }
