"""What of ``memory.limit`` can be told before a weight is read: whether base model and one adapter fit at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError, Problem
from cohort.core.memory_records import GradientCheckpointing
from cohort.core.units import format_bytes
from cohort.engine.machine.machine import Machine
from cohort.engine.memory.sizes import SizeRequest, Sizes, choose_sizes, estimate_passes, rank_row_bytes, too_large
from cohort.engine.memory.smallest import SmallestMemory, find_smallest_memory
from cohort.models import counts
from cohort.models.config import DecoderConfig
from cohort.tasks.task_file import TaskFile
from cohort.training.trial import TrialSpec

__all__ = ["estimate_smallest_memory", "limit_problem", "require_room_for_an_adapter", "weight_bytes"]


def limit_problem(task: TaskFile, *, taken: int, enough: SmallestMemory | None = None) -> Problem | None:
    """Return what is wrong with a limit that the base model's ``taken`` bytes use up; None when there is room.

    Args:
        task: Its ``memory`` section.
        taken: Bytes of the base model.
        enough: What the task would do with, where that is known.
    """
    limit = task.memory.limit
    if limit is None or limit > taken:
        return None
    to = "" if enough is None or enough.raised is None else f" to {enough.raised}"
    return Problem(
        where=task.where("memory.limit"),
        found=format_bytes(limit),
        allowed=f"more than {format_bytes(taken)}, which the base model takes",
        hint=f"Raise it{to}, remove it, or choose a smaller base model.",
    )


def estimate_smallest_memory(
    task: TaskFile,
    machine: Machine,
    *,
    config: DecoderConfig,
    layout: AdapterLayout,
    specs: Sequence[TrialSpec],
    longest_row: int,
) -> SmallestMemory | None:
    """Return what a task would do with, passes estimated from above; None where no memory would do.

    Args:
        task: Its ``memory`` section.
        machine: What it would train on, the base model not loaded yet.
        config: Of the base model.
        layout: Adapted linears.
        specs: The trials with the most needs.
        longest_row: Tokens of the longest row.
    """
    needs = estimate_passes(config, dtype=getattr(torch, machine.dtype), device=machine.device)
    needs = replace(needs, margin_share=task.memory.margin)

    def sizes_of(free: int) -> Sizes:
        return choose_sizes(
            specs,
            layout=layout,
            machine=replace(machine, memory_bytes=free),
            longest_row=longest_row,
            request=SizeRequest(),
            needs=needs,
            gradient_checkpointing=GradientCheckpointing(task.memory.gradient_checkpointing),
        )

    needed = find_smallest_memory(sizes_of, taken=weight_bytes(config, machine))
    if needed is None:
        return None
    return SmallestMemory(num_bytes=needed, limit_bytes=task.memory.limit, there_bytes=machine.memory_bytes)


def weight_bytes(config: DecoderConfig, machine: Machine) -> int:
    """Return the bytes of the base model's weights on the machine."""
    return counts.weight_bytes(config, dtype=getattr(torch, machine.dtype))


def require_room_for_an_adapter(
    task: TaskFile,
    machine: Machine,
    *,
    config: DecoderConfig,
    layout: AdapterLayout,
    specs: Sequence[TrialSpec],
    longest_row: int,
) -> None:
    """Refuse a limit that does not hold the base model and the state of the widest adapter, passes left aside.

    Args:
        task: Its ``memory`` section.
        machine: What it would train on.
        config: Of the base model.
        layout: Adapted linears.
        specs: The trials with the most needs.
        longest_row: Tokens of the longest row, for the limit that would do.

    Raises:
        InputError: the limit is too low for any pass.
    """
    if task.memory.limit is None:
        return
    left = task.memory.limit - weight_bytes(config, machine)
    room = int(left * (1 - task.memory.margin))
    row_bytes = rank_row_bytes(layout, has_compute_copy=machine.dtype == "bfloat16")
    rank = max(spec.adapter.r for spec in specs)
    if aligned_rank(rank) * row_bytes > room:
        problem = task.located(too_large(rank, row_bytes=row_bytes, room=room, free_bytes=left))
        enough = estimate_smallest_memory(
            task, machine, config=config, layout=layout, specs=specs, longest_row=longest_row
        )
        raise InputError(problem if enough is None else enough.with_hint(problem))
