"""Sizes of an executor that fit in memory: slots, rank rows and tokens of a pass.

Adapter state is exact arithmetic. What a pass takes was measured (:mod:`~cohort.memory.profile`) or is estimated
from above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cohort.adapters.bank import aligned_rank
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError, Problem
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.source_location import Place
from cohort.core.units import format_bytes
from cohort.memory.size_inputs import SizeInputs
from cohort.runs.fact_groups import SizeFacts
from cohort.scheduling.admission import Capacity
from cohort.scheduling.pass_sizes import MemoryNeeds, PassSizes, choose_pass_sizes, row_too_long
from cohort.training.cuda_graphs.recorded_shapes import most_recorded_tokens
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.gradient_checkpointing import LEAST_SPLIT_TOKENS

__all__ = [
    "Sizes",
    "choose_sizes",
    "recomputed_note",
    "size_facts",
    "too_large",
]

# a CPU core is as fast as it gets, within 7 %, from 512 to 4,096 tokens a pass; at 256 it is 10 % slower, at 128 23 %
# (benchmarks/results/token_budget_cpu.json). The upper half of that range keeps more trials with long rows resident.
CPU_TOKENS = 2048
# one H200 reaches its matrix ceiling from about 8,192 tokens a pass; below 4,096 it mostly waits for the host
GPU_TOKENS = (16384, 8192, 4096)
# as on a GPU, where a limit is set: from what fills the core to what may cost a quarter of its speed
CPU_SIZES = (2048, 1024, 512, 256)
# recorded passes of fewer tokens take almost as long as one of this many
FLAT_TOKENS = 512
# where trials have to wait for memory, recorded passes hold at most this share of it, or no pass is recorded
GRAPH_SHARE, LEAST_GRAPH_TOKENS = 0.08, 512
MOST_SLOTS = 64
# tokens of a usual training row: a pass is full with one such row of each resident trial, and a larger bank would push
# the states of parked trials off the device
USUAL_ROW = 200
# room for more trials than fill a pass on average, as small batches come together: with this many the steps of a sweep
# of 60 on an 8B model are as full as with twice as many, with a quarter less they are a fifth more (pass_sizes.py)
SPARE_TRIALS = 1.25
# of the memory that the base model leaves: keys and values of answers on their way; with fewer at a time all is slower
ANSWER_SHARE = 0.3
# of the memory that the base model leaves on a CPU; the rest is for activations and what the allocator wastes
BANK_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the executor, the capacity that admission fills, and device memory for the states of parked trials."""

    executor: ExecutorSettings
    capacity: Capacity
    device_state_bytes: int = 0


def choose_sizes(inputs: SizeInputs, *, free_bytes: int) -> Sizes:
    """Return sizes that hold as many trials at once as memory and a full machine allow.

    On a GPU tokens and bank share what is left without the base model, a margin and the loss head: the most
    tokens a pass with which all trials fit at once, else the fewest that fill the machine, and fewer only when the
    largest rank would not fit otherwise. A CPU whose needs are known, because its user set a limit, is treated alike.

    Args:
        free_bytes: Memory of the device that the base model leaves; less where the user's limit is lower.

    Raises:
        InputError: not even the largest rank fits, or the longest row does not fit with it.
    """
    needs, request, mode = inputs.needs, inputs.request, inputs.gradient_checkpointing
    on_gpu = inputs.machine.device.type == "cuda"
    assert needs is not None or not on_gpu, "passes of a GPU are measured or estimated"
    free_bytes, answer_tokens = _left_by_answers(inputs, max(0, free_bytes - inputs.mask_bytes))
    row_bytes, by_need = inputs.row_bytes, inputs.rows_by_need
    num_slots = request.num_slots or min(len(by_need), MOST_SLOTS)
    most = 0 if needs is None else most_recorded_tokens(inputs.machine.numerics, launching=needs.launching_tokens)
    if needs is not None:
        room = int(free_bytes * (1 - needs.margin_share)) - needs.reserve_bytes
        passes = choose_pass_sizes(
            needs,
            room=room,
            least_bytes=by_need[0] * row_bytes,
            wanted_bytes=sum(by_need) * row_bytes,
            sizes=(GPU_TOKENS if on_gpu else CPU_SIZES) if request.token_budget is None else (request.token_budget,),
            most_recorded=most,
            longest_row=inputs.longest_row,
            mode=mode,
            least_split=LEAST_SPLIT_TOKENS.get(inputs.machine.device.type, 1),
        )
        room -= passes.num_bytes
    else:
        keep_tokens = 0 if mode is GradientCheckpointing.ALWAYS else None
        passes = PassSizes(tokens=request.token_budget or CPU_TOKENS, keep_tokens=keep_tokens, num_bytes=0)
        # no pass was measured or estimated: a share of the memory is left for it
        room = int(free_bytes * BANK_SHARE)
    wanted = request.rank_rows or _rows_of_a_pass(by_need[:num_slots], passes.tokens, on_gpu)
    graph_tokens, graph_bytes = 0, None
    if on_gpu and needs is not None:
        # recorded passes come last: they only save time, while the bank decides how many trials share a pass
        bank = (by_need[0] * row_bytes, wanted * row_bytes)
        graph_tokens = _graph_tokens(needs, most=min(most, passes.kept_tokens), room=room, bank_bytes=bank)
        graph_bytes = math.ceil(needs.graph_bytes(graph_tokens))
        room -= graph_bytes
    affordable = max(0, room) // row_bytes
    if affordable < by_need[0]:
        raise InputError(_misfit(inputs, passes, room=room, free_bytes=free_bytes))
    # each trial takes a multiple of 16 rank rows (aligned_rank), so a rest of fewer could hold none
    rank_rows = min(wanted, affordable // 16 * 16)
    rank_rows = _rows_next_to_states(inputs, wanted=rank_rows, affordable=affordable, tokens=passes.tokens)
    tokens = max(passes.tokens, inputs.longest_row)
    return Sizes(
        executor=ExecutorSettings(
            num_slots=num_slots,
            num_rank_rows=rank_rows,
            token_budget=passes.tokens,
            evaluation_token_budget=passes.evaluation_tokens,
            graph_tokens=graph_tokens,
            graph_bytes=graph_bytes,
            gradient_checkpointing=mode,
            keep_tokens=passes.keep_tokens,
            answer_tokens=answer_tokens,
            numerics=inputs.machine.numerics,
        ),
        capacity=Capacity(rank_rows=rank_rows, num_slots=num_slots, tokens_per_step=tokens, num_ranks=inputs.num_ranks),
        device_state_bytes=(affordable - rank_rows) * row_bytes if on_gpu else 0,
    )


def _misfit(inputs: SizeInputs, passes: PassSizes, *, room: int, free_bytes: int) -> Problem:
    """Return what is wrong where the state of one adapter does not fit next to the passes."""
    left = room + passes.num_bytes - inputs.rows_by_need[0] * inputs.row_bytes
    row, source, mode = inputs.longest_row, inputs.longest_source, inputs.gradient_checkpointing
    problem = row_too_long(inputs.needs, passes, left=left, longest_row=row, source=source, mode=mode)
    return problem or too_large(inputs.widest, row_bytes=inputs.row_bytes, room=room, free_bytes=free_bytes)


def too_large(adapter: AdapterSpec, *, row_bytes: int, room: int, free_bytes: int) -> Problem:
    """Return what is wrong when the state of one adapter does not fit into ``room`` bytes."""
    rank, saved = adapter.num_rows, adapter.saved
    if saved is not None:
        names, takes = ", ".join(saved.names), format_bytes(aligned_rank(rank) * row_bytes)
        return Problem(
            where=Place(key=("lora", "modules_to_save")),
            found=f"{names}, of which a trial's copy takes {takes} with its adapter",
            allowed=f"at most {format_bytes(max(0, room))}, which the smallest pass and the margin leave of "
            f"{format_bytes(free_bytes)} free next to the base model",
            hint="Name one of the modules or none, write optim: adamw_8bit, raise memory.limit where one is set, or "
            "use a machine with more memory.",
        )
    fitting = max(0, room) // (row_bytes * aligned_rank(1)) * aligned_rank(1)
    return Problem(
        where=Place(key=("search", "space", "r")),
        found=f"rank {rank}, whose training state takes {format_bytes(aligned_rank(rank) * row_bytes)}",
        allowed=f"at most {format_bytes(max(0, room))}, which the smallest pass and the margin leave of "
        f"{format_bytes(free_bytes)} free next to the base model"
        + (f": ranks up to {fitting}" if fitting else ": too little for any rank"),
        hint=("Choose smaller ranks, fewer" if fitting else "Choose fewer")
        + " target_modules, a smaller dataset.max_length, a higher memory.limit where one is set, or a machine with "
        "more memory.",
    )


def _graph_tokens(needs: MemoryNeeds, *, most: int, room: int, bank_bytes: tuple[int, int]) -> int:
    """Return up to how many tokens passes are recorded; fewer than ``most`` where the bank needs their memory.

    ``bank_bytes``: the least that trains, which no graph may take, and what is wanted.
    """
    least, wanted = bank_bytes
    tokens = most
    while tokens >= LEAST_GRAPH_TOKENS:
        held = needs.graph_bytes(tokens)
        if room - held >= wanted or (room - held >= least and held <= GRAPH_SHARE * room):
            return tokens
        tokens //= 2
    return 0


def _rows_of_a_pass(by_need: Sequence[int], tokens: int, on_gpu: bool) -> int:  # noqa: FBT001
    # a CPU works sample by sample, so more residents cost it nothing
    most = max(1, tokens // USUAL_ROW) if on_gpu else len(by_need)
    return max(by_need[0], aligned_rank(round(sum(by_need) * min(1.0, most / len(by_need)))))


def _rows_next_to_states(inputs: SizeInputs, *, wanted: int, affordable: int, tokens: int) -> int:
    """Return the rank rows of a bank that leaves room for the states of parked trials; at most ``wanted``.

    A bank with room for more trials than fill a pass trains no faster, while states that find no room on the device
    pass through the host: half a second each for an 8B model, in which the device may wait. A bank as large as the
    trials of usual batch sizes need is kept whatever the states take.
    """
    if inputs.request.rank_rows is not None or inputs.machine.device.type != "cuda":
        return wanted
    by_need = inputs.rows_by_need
    num_usual = SPARE_TRIALS * tokens / (USUAL_ROW * inputs.mean_batch_size)
    usual = round(sum(by_need) * min(1.0, num_usual / len(by_need)))
    states = math.ceil(sum(by_need) * inputs.state_row_bytes / inputs.row_bytes)
    return min(wanted, max(aligned_rank(usual), by_need[0], (affordable - states) // 16 * 16))


def _left_by_answers(inputs: SizeInputs, free_bytes: int) -> tuple[int, int]:
    """Return the bytes that answers leave to training, and how many of their positions are kept.

    Keys and values stay while passes train on other trials' answers: one budget for both. They are those of all answers
    that trials draw at once, or what a share of memory holds.
    """
    if not inputs.answer_tokens:
        return free_bytes, 0
    if inputs.machine.device.type == "cuda":
        # where that is too little, decoding launches its larger passes kernel by kernel
        free_bytes -= min(inputs.answer_graph_bytes, int(GRAPH_SHARE * free_bytes))
    affordable = int(ANSWER_SHARE * free_bytes) // max(1, inputs.answer_token_bytes)
    tokens = max(min(inputs.answer_tokens, affordable), inputs.longest_row)
    return free_bytes - tokens * inputs.answer_token_bytes, tokens


def recomputed_note(sizes: Sizes, lengths: NDArray[np.int64]) -> str | None:
    """Return in a line which training passes are recomputed, and what that costs; None where none is.

    Args:
        lengths: Tokens of each training row, [N].
    """
    kept = sizes.executor.keep_tokens
    cost = "such a pass is about 50 % slower, and no result changes"
    if sizes.executor.gradient_checkpointing is GradientCheckpointing.ALWAYS:
        return f"memory: every training pass is recomputed (memory.gradient_checkpointing: always); {cost}"
    if kept is None:
        return None
    return (
        f"memory: training passes of more than {kept:,} tokens do not fit with all activations kept and are recomputed "
        f"({int((lengths > kept).sum()):,} of {len(lengths):,} rows are longer); {cost}"
    )


def size_facts(sizes: Sizes) -> SizeFacts:
    return SizeFacts(
        num_slots=sizes.executor.num_slots,
        rank_rows=sizes.executor.num_rank_rows,
        token_budget=sizes.executor.token_budget,
        num_ranks=sizes.capacity.num_ranks,
        gradient_checkpointing=sizes.executor.gradient_checkpointing,
    )
