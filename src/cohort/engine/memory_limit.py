"""What of ``memory.limit`` can be told before a weight is read: whether base model and one adapter fit at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.errors import InputError, Problem
from cohort.core.units import format_bytes
from cohort.engine.machine import Machine
from cohort.engine.sizing import rank_row_bytes, too_large
from cohort.engine.task_file_model import TaskFile
from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.training.trial import TrialSpec

__all__ = ["limit_problem", "placed", "require_room_for_an_adapter", "weight_bytes"]


def limit_problem(task: TaskFile, *, taken: int) -> Problem | None:
    """Return what is wrong with a limit that the base model's ``taken`` bytes use up; None when there is room."""
    limit = task.memory.limit
    if limit is None or limit > taken:
        return None
    return Problem(
        where=task.where("memory.limit"),
        found=format_bytes(limit),
        allowed=f"more than {format_bytes(taken)}, which the base model takes",
        mend="Raise it, remove it, or choose a smaller base model.",
    )


def weight_bytes(config: DecoderConfig, machine: Machine) -> int:
    """Return the bytes of the base model's weights on the machine."""
    return count_model(config).weight_bytes(getattr(torch, machine.dtype).itemsize)


def require_room_for_an_adapter(
    task: TaskFile, machine: Machine, *, config: DecoderConfig, layout: AdapterLayout, specs: Sequence[TrialSpec]
) -> None:
    """Refuse a limit that does not hold the base model and the state of the widest adapter, passes left aside.

    Args:
        task: Its ``memory`` section.
        machine: What it would train on.
        config: Of the base model.
        layout: Adapted linears.
        specs: The trials with the most needs.

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
        raise InputError(placed(task, too_large(rank, row_bytes=row_bytes, room=room, free_bytes=left)))


def placed(task: TaskFile, problem: Problem) -> Problem:
    """Return a problem of sizes, which know keys but not their lines, with the line in the task file."""
    is_searched = problem.where != "search.space.r" or "r" in task.search.space
    return replace(problem, where=task.where(problem.where if is_searched else "lora.r"))
