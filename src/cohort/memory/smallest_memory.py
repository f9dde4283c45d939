"""Whether a task fits in the available memory, and the smallest memory that would be enough, for error messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cohort.adapters.bank import aligned_rank
from cohort.core.errors import InputError, Problem
from cohort.core.units import format_bytes, format_bytes_above
from cohort.machine.machine import Machine
from cohort.memory.budget import Sizes, choose_sizes, too_large
from cohort.memory.demand import Demand
from cohort.memory.pass_estimates import estimate_passes
from cohort.memory.size_inputs import SizeInputs
from cohort.models import counts
from cohort.models.config import DecoderConfig
from cohort.tasks.task_file import TaskFile

__all__ = [
    "SmallestMemory",
    "estimated_inputs",
    "limit_problem",
    "require_room_for_an_adapter",
    "sizes_within",
    "smallest_memory",
    "weight_bytes",
]

# bytes between which the smallest memory is looked for
_LEAST, _MOST = 1 << 10, 1 << 48


@dataclass(frozen=True, kw_only=True)
class SmallestMemory:
    """The smallest memory that is enough for a task.

    Attributes:
        num_bytes: The base model's included; within 0.1 %, never too few.
        limit_bytes: The task's own limit; None where it has none.
        there_bytes: What the machine has for the task, the base model included.
        is_measured: Whether passes were measured; otherwise they are estimated from above.
    """

    num_bytes: int
    limit_bytes: int | None
    there_bytes: float
    is_measured: bool = False

    @property
    def raised(self) -> str | None:
        """``24.1 GiB or more (...)``, to which the limit would have to be raised; None where no limit helps."""
        if self.limit_bytes is None or self.num_bytes > self.there_bytes:
            return None
        return f"{format_bytes_above(self.num_bytes)} or more ({self._how})"

    def with_hint(self, problem: Problem) -> Problem:
        """Return a problem of too little memory with the memory that would be enough."""
        if (raised := self.raised) is not None:
            return replace(problem, hint=f"Raise memory.limit to {raised}. Or: {problem.hint}")
        takes = f"{format_bytes_above(self.num_bytes)} would be enough, the base model's included ({self._how})"
        return replace(problem, hint=f"{takes}; there are {format_bytes(self.there_bytes)}. {problem.hint}")

    @property
    def _how(self) -> str:
        return "as passes were measured" if self.is_measured else "by an estimate from above"


def weight_bytes(config: DecoderConfig, machine: Machine) -> int:
    """Return the bytes of the base model's weights on the machine."""
    return counts.weight_bytes(
        config,
        dtype=getattr(torch, machine.dtype),
        weight_format=machine.quantization,
        room_bytes=machine.memory_bytes if machine.device.type == "cuda" else 0,
    )


def estimated_inputs(demand: Demand) -> SizeInputs:
    """Return what sizes follow from before a weight is read: passes are estimated from above."""
    needs = estimate_passes(demand.config, dtype=demand.dtype, device=demand.machine.device)
    return demand.size_inputs(needs=replace(needs, margin_share=demand.task.memory.margin))


def sizes_within(
    task: TaskFile,
    inputs: SizeInputs,
    *,
    free_bytes: int,
    base_bytes: int,
    there_bytes: float,
    is_measured: bool = False,
) -> Sizes:
    """Return the sizes of a task; where it does not fit, say at which key and with how much memory it would.

    Args:
        free_bytes: For adapters and passes.
        there_bytes: What the machine has for the task, the base model included.

    Raises:
        InputError: it does not fit.
    """
    try:
        return choose_sizes(inputs, free_bytes=free_bytes)
    except InputError as error:
        problems = [task.located(problem) for problem in error.problems]
    enough = smallest_memory(task, inputs, base_bytes=base_bytes, there_bytes=there_bytes, is_measured=is_measured)
    raise InputError(problems if enough is None else [enough.with_hint(problem) for problem in problems])


def smallest_memory(
    task: TaskFile, inputs: SizeInputs, *, base_bytes: int, there_bytes: float, is_measured: bool = False
) -> SmallestMemory | None:
    """Return the smallest memory that is enough, by the figures that a refusal is based on; None if no amount is.

    The arguments are those of :func:`sizes_within`.
    """

    def is_enough(free_bytes: int) -> bool:
        try:
            choose_sizes(inputs, free_bytes=free_bytes)
        except InputError:
            return False
        return True

    # bytes, margin and pass sizes interact in no closed form, and a try is plain arithmetic
    high = _LEAST
    while not is_enough(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > max(1, high >> 10):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return SmallestMemory(
        num_bytes=base_bytes + high,
        limit_bytes=task.memory.limit,
        there_bytes=there_bytes,
        is_measured=is_measured,
    )


def limit_problem(
    task: TaskFile, *, base_bytes: int, pass_bytes: int = 0, enough: SmallestMemory | None = None
) -> Problem | None:
    """Return what is wrong with a limit that the base model uses up; None when there is room.

    Args:
        pass_bytes: What every pass takes in addition.
        enough: The memory in which the task would fit, where that is known.
    """
    limit = task.memory.limit
    if limit is None or limit > base_bytes + pass_bytes:
        return None
    to = "" if enough is None or enough.raised is None else f" to {enough.raised}"
    room = ", and room for a pass" if pass_bytes else ""
    return Problem(
        where=task.where("memory.limit"),
        found=format_bytes(limit),
        allowed=f"more than {format_bytes(base_bytes)}, which the base model takes{room}",
        hint=f"Raise it{to}, remove it, or choose a smaller base model.",
    )


def require_room_for_an_adapter(task: TaskFile, inputs: SizeInputs, *, base_bytes: int) -> None:
    """Refuse a limit that cannot hold even the base model and the state of the widest adapter, before any pass.

    Raises:
        InputError: the limit is too low for any pass.
    """
    if task.memory.limit is None:
        return
    left = task.memory.limit - base_bytes
    room = int(left * (1 - task.memory.margin))
    rank = inputs.most_rows
    # passes are left out on purpose: estimated from above, they would refuse limits that do once they are measured
    if aligned_rank(rank) * inputs.row_bytes > room:
        problem = task.located(too_large(inputs.widest, row_bytes=inputs.row_bytes, room=room, free_bytes=left))
        there = inputs.machine.memory_bytes
        enough = smallest_memory(task, inputs, base_bytes=base_bytes, there_bytes=there)
        raise InputError(problem if enough is None else enough.with_hint(problem))
