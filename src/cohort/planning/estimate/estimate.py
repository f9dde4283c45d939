"""Estimates a task before it runs: GPUs, seconds and memory, each with the source of the figure.

Seconds are the worst case: every trial trains to its end, evaluations included, and the process starts once. Early exit
only makes a task shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cohort.core.errors import InputError, Problem
from cohort.machine.devices import hardware_of
from cohort.machine.measurements import read_costs
from cohort.memory.budget import Sizes
from cohort.planning.estimate.planned_machine import cost_key
from cohort.planning.estimate.task_costs import TaskCosts
from cohort.planning.estimate.time_parts import TimeParts
from cohort.prepare.base_model.numerics import numerics_text
from cohort.prepare.inputs import TaskInputs, read_inputs
from cohort.scheduling.cost.hardware import Hardware
from cohort.scheduling.cost.model import CostSource
from cohort.scheduling.cost.shared_time import SharedWork
from cohort.scheduling.placement.records import TaskOption, TaskRequest
from cohort.tasks.task_file import TaskFile

__all__ = ["OptionEstimate", "TaskEstimate", "estimate_task", "hardware_of", "task_degrees"]


@dataclass(frozen=True, kw_only=True)
class OptionEstimate:
    """One way to run a task.

    Attributes:
        num_gpus: Devices it holds (a CPU worker counts as one).
        strategy: How they share it, as a run would: ``replicas``, ``adapter_parallel``, ``tensor`` or ``pipeline``.
        numerics: What a run would take on such GPUs, and why where the task leaves it to the machine; None on a CPU.
        time: Seconds from its start to its end in the worst case, by what they are spent on.
        memory_bytes: On each device at most: base model's share, adapters' states, one pass.
        is_tight: Whether that is above the task's limit, by an estimate from above: the run will measure.
    """

    num_gpus: int
    time: TimeParts
    memory_bytes: float
    is_tight: bool = False
    strategy: str = "replicas"
    numerics: str | None = None

    @property
    def seconds(self) -> float:
        """Worst case from the task's start to its end."""
        return self.time.total

    @property
    def step_source(self) -> CostSource:
        return self.time.source


@dataclass(frozen=True, kw_only=True)
class TaskEstimate:
    """The estimate of a task.

    Attributes:
        options: Ways to run it, by number of GPUs.
        num_trials: Configurations it tries.
        priority: As in the task file.
        hardware: Name of what it was estimated for.
        work: What it would do on one GPU in an executor that it shares; None where it shares with none.
    """

    options: tuple[OptionEstimate, ...]
    num_trials: int
    priority: int
    hardware: str
    work: SharedWork | None = None

    @property
    def num_gpus(self) -> int:
        return self.options[0].num_gpus

    @property
    def seconds(self) -> float:
        """Worst case of the first option."""
        return self.options[0].seconds

    def request(self, task_id: str, *, arrival_seconds: float = 0.0) -> TaskRequest:
        return TaskRequest(
            task_id=task_id,
            options=tuple(TaskOption(num_gpus=o.num_gpus, seconds=o.seconds) for o in self.options),
            arrival_seconds=arrival_seconds,
            priority=self.priority,
            work=self.work,
        )


def estimate_task(
    task: TaskFile,
    hardware: Hardware,
    *,
    inputs: TaskInputs | None = None,
    most_gpus: int | None = None,
    gpus_of_node: int | None = None,
    cache_directory: Path | None = None,
) -> TaskEstimate:
    """Estimate ``task`` on ``hardware``.

    Args:
        hardware: One device of those it may run on.
        inputs: The task's inputs, where they were read already.
        most_gpus: Most GPUs that one task may be given; None: what it asks for.
        gpus_of_node: GPUs of the largest machine, which a task cannot leave; None: enough.
        cache_directory: Where measured costs are; ``$COHORT_CACHE_DIR`` or its default when None.

    Raises:
        InputError: something is wrong with the task's inputs, or it fits no allowed number of GPUs.
    """
    # a plan must refuse what a run refuses
    _refuse_other_device(task, hardware)
    degrees = task_degrees(task, most_gpus=most_gpus, gpus_of_node=gpus_of_node)
    found = inputs or read_inputs(task)
    measured = read_costs(cost_key(task, found, hardware), directory=cache_directory)
    sketch = TaskCosts(task, found, hardware, measured)
    sized: list[tuple[int, Sizes]] = []
    refusal: InputError | None = None
    for degree in degrees:
        try:
            sized.append((degree, sketch.memory.sizes(degree)))
        except InputError as error:
            # a model that is too large for one GPU may fit on two; the first refusal is the one to show
            refusal = refusal or error
    if not sized:
        assert refusal is not None, "every number of GPUs was refused for a reason"
        raise refusal
    options = tuple(_option(sketch, degree, sizes) for degree, sizes in sized)
    degree, sizes = sized[0]
    return TaskEstimate(
        options=options,
        work=sketch.shared_work(sizes, options[0].time) if degree == 1 else None,
        num_trials=len(sketch.trials),
        priority=task.priority,
        hardware=hardware.name,
    )


def _option(sketch: TaskCosts, num_gpus: int, sizes: Sizes) -> OptionEstimate:
    needed = sketch.memory.memory_bytes(num_gpus, sizes)
    return OptionEstimate(
        num_gpus=num_gpus,
        time=sketch.time(num_gpus, sizes),
        memory_bytes=min(needed, sketch.memory.device_bytes),
        is_tight=num_gpus in sketch.memory.tight_on,
        strategy=sketch.memory.strategy.name(num_gpus),
        numerics=numerics_text(sketch.memory.machine(0, num_gpus=num_gpus)),
    )


def task_degrees(task: TaskFile, *, most_gpus: int | None = None, gpus_of_node: int | None = None) -> tuple[int, ...]:
    """Return the numbers of GPUs that a task may be given: what its file says, or for ``auto`` the powers of two.

    Args:
        most_gpus: Most that one task may be given; None: what its file says, and one for ``auto``.
        gpus_of_node: GPUs of the largest machine, which a task cannot leave; None: enough.

    Raises:
        InputError: the file asks for more.
    """
    room = min(bound for bound in (most_gpus, gpus_of_node, float("inf")) if bound is not None)
    # on a CPU (0) the number of processes is the queue's to choose, as with auto
    if task.num_gpus in ("auto", 0):
        most = int(min(room, most_gpus or 1))
        return tuple(2**k for k in range(max(1, most).bit_length()))
    wanted = int(task.num_gpus)
    if wanted <= room:
        return (wanted,)
    is_option = most_gpus is not None and room == most_gpus
    least = "--max-gpus-per-task" if is_option else "the GPUs, or CPU workers, of one machine"
    raise InputError(
        Problem(
            where=task.where("num_gpus"),
            found=str(wanted),
            allowed=f"auto | 1{f' to {room}' if room > 1 else ''}: {least}",
            hint=f"Write num_gpus: {room}, or auto.",
        )
    )


def _refuse_other_device(task: TaskFile, hardware: Hardware) -> None:
    """Refuse a task that asks for the CPU where it would get a GPU; on CPU workers ``num_gpus`` counts processes."""
    if task.num_gpus == 0 and hardware.is_gpu:
        raise InputError(
            Problem(
                where=task.where("num_gpus"),
                found="0: the task asks for the CPU",
                allowed=f"auto | 1, on {hardware.name}",
                hint="Write num_gpus: auto, or use --workers N instead of GPUs.",
            )
        )
