"""Fills the caches of a machine before the first run: its kernels are compiled, and what passes take is measured.

What a run does before its first step, and nothing else: all of it ends up in caches that later runs find.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace

from cohort.core.cache_directory import default_cache_directory
from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import InputError, Problem
from cohort.engine.run_start import prepare_task
from cohort.engine.train.open_run import RunConditions
from cohort.engine.train.watching.progress import ProgressWatcher, RunProgress
from cohort.kernels.backend import Backend, describe_backend
from cohort.machine.compile_ahead.absent_gpu import absent_gpu
from cohort.machine.compile_ahead.launched_model import launched_model
from cohort.machine.compile_ahead.task_kernels import KernelWarmUp
from cohort.machine.compile_ahead.triton_cache import triton_cache
from cohort.machine.compile_ahead.workers import Compiled, settle_compiling
from cohort.machine.gpu_kinds import GpuKind, find_gpu_kind
from cohort.machine.machine import choose_machine
from cohort.machine.writable_directory import require_writable
from cohort.memory.model_place import choose_model_place
from cohort.models.source import find_model
from cohort.models.weight_formats import PLAIN
from cohort.prepare.inputs import read_inputs_and_machine
from cohort.prepare.proposals import TrialProposals
from cohort.tasks.loading import load_task
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile

__all__ = ["WarmReport", "compile_for_absent_gpu", "warm_caches"]

_TASK_SUFFIXES = (".yaml", ".yml", ".json")
# rows of a usual length: tiles are chosen by tokens of a pass and by a row's length
_NUM_ROWS, _WORDS = 64, 120


@dataclass(frozen=True, kw_only=True)
class WarmReport:
    """What was done.

    Attributes:
        model: The base model, as the task names it.
        device: What it was done for.
        num_kernels: Compiled, where it was done for a GPU that is not here; 0 where the cache held all. None for the
            GPU of this machine.
        phases: (what, seconds) of all that took time, in order.
        caches: Where the results are.
        is_task: Whether it was done for a task file, whose rows decide which passes are measured.
    """

    model: str
    device: str
    phases: tuple[tuple[str, float], ...]
    caches: tuple[str, ...]
    is_task: bool
    num_kernels: int | None = None


class _Phases:
    """Times the phases of a preparation, and passes them on."""

    def __init__(self, watcher: ProgressWatcher, clock: Clock) -> None:
        self._watcher, self._clock = watcher, clock
        self._began: list[tuple[str, float]] = []
        self._start = clock.monotonic()

    def update(self, progress: RunProgress) -> None:
        now = self._clock.monotonic()
        if not self._began or self._began[-1][0] != progress.phase:
            self._began.append((progress.phase, now))
        # there is no run yet that would count them
        self._watcher.update(replace(progress, elapsed_seconds=now - self._start))

    def note(self, text: str) -> None:
        self._watcher.note(text)

    def ended(self) -> tuple[tuple[str, float], ...]:
        ends = [*(began for _, began in self._began[1:]), self._clock.monotonic()]
        return tuple((what, end - began) for (what, began), end in zip(self._began, ends, strict=True))


def warm_caches(
    model_or_task: str, *, watcher: ProgressWatcher, clock: Clock | None = None, gpu: str | None = None
) -> WarmReport:
    """Do what a run does before its first step, and leave it in the caches.

    Args:
        model_or_task: A task file; or a base model, a hub id or a directory, for usual ranks on all of its linears.
        watcher: Receives what is being done.
        clock: Measures it.
        gpu: The kind of GPU, by torch's name, that kernels are compiled for, whatever is in this machine. Then they are
            all that is done: what passes take can be measured on the GPU only.

    Raises:
        InputError: there is no such model, file or kind of GPU, no GPU that kernels are compiled for, kernels could not
            be compiled, or a cache cannot be written.
    """
    clock = clock or SystemClock()
    kind = None if gpu is None else find_gpu_kind(gpu, where="--gpu")
    is_task = model_or_task.endswith(_TASK_SUFFIXES)
    task = load_task(model_or_task) if is_task else _usual_task(model_or_task)
    if kind is None:
        _require_gpu(task)
    caches = [default_cache_directory(), *([] if (triton := triton_cache()) is None else [triton])]
    for cache in caches:
        require_writable(cache, hint="Set COHORT_CACHE_DIR and TRITON_CACHE_DIR to directories on a disk with room.")
    phases = _Phases(watcher, clock)
    num_kernels: int | None = None
    if kind is None:
        device = prepare_task(task, RunConditions(watcher=phases, clock=clock)).machine.device_name
        # a run goes on while they are compiled
        settle_compiling()
    else:
        device, num_kernels = kind.name, _compile_for(kind, task, phases)
    return WarmReport(
        model=task.model_name_or_path,
        device=device,
        phases=phases.ended(),
        caches=tuple(map(str, caches)),
        is_task=is_task,
        num_kernels=num_kernels,
    )


def _compile_for(kind: GpuKind, task: TaskFile, phases: _Phases) -> int:
    """Return how many kernels were compiled, all of the task's."""
    compiled = compile_for_absent_gpu(task, kind, say=lambda phase: phases.update(RunProgress(phase=phase)))
    if compiled.num_failed:
        raise InputError(
            Problem(
                where="--gpu",
                found=f"{compiled.num_failed} of {compiled.num_kernels + compiled.num_failed} kernels that Triton did "
                f"not compile for {kind.name}: {compiled.first_error}",
                allowed="a GPU that this Triton compiles for",
                hint="Take the Triton of the machine that trains; runs compile there what is missing here.",
            )
        )
    return compiled.num_kernels


def compile_for_absent_gpu(task: TaskFile, kind: GpuKind, *, say: Callable[[str], None]) -> Compiled:
    """Compile what a run of ``task`` on GPUs of ``kind`` compiles before its first step; return how much that was.

    No weights are read, and nothing is measured.

    Raises:
        InputError: every problem of the task's inputs; Triton is missing; or the task's kernels follow from weights.
    """
    if importlib.util.find_spec("triton") is None:
        raise InputError(
            Problem(
                where="--gpu",
                found="no Triton here, which compiles the kernels",
                allowed="the Triton that runs use",
                hint="Install the torch and Triton of the machine that trains: pip install '.[gpu]'.",
            )
        )
    if task.num_gpus == 0 or task.quantization != PLAIN.name:
        is_for_cpu = task.num_gpus == 0
        raise InputError(
            Problem(
                where=task.where("num_gpus" if is_for_cpu else "quantization"),
                found="0, the CPU, for which nothing is compiled" if is_for_cpu else task.quantization,
                allowed="auto | 1 or more" if is_for_cpu else PLAIN.name,
                hint="Leave --warm out."
                if is_for_cpu
                else "Run --warm without --gpu on a machine with that GPU: the "
                "kernels for such weights follow from how they are kept there.",
            )
        )
    with absent_gpu(kind):
        say("reading and tokenising the data")
        inputs, machine = read_inputs_and_machine(task)
        specs = TrialProposals(task, inputs.data.train, saved=inputs.saved_modules(task)).largest()
        demand = inputs.demand(task, machine, specs=specs)
        # ranks that hold the model together launch others
        group = choose_model_place(demand).group
        launched = launched_model(group, config=demand.config, layout=demand.layout)
        with KernelWarmUp(
            machine,
            model=launched,
            adapters=[spec.adapter for spec in specs],
            mean_length=float(demand.rows.lengths.mean()),
            say=say,
        ) as kernels:
            kernels.begin()
            if kernels.problem:
                raise InputError(
                    Problem(
                        where="--gpu",
                        found=f"passes of {task.model_name_or_path} that need the GPU itself: {kernels.problem}",
                        allowed="a model whose kernels follow from shapes",
                        hint="Run --warm without --gpu on a machine with that GPU.",
                    )
                )
            return kernels.finish(None)


def _usual_task(model: str) -> TaskFile:
    """Return a task of usual ranks on rows of a usual length, if there is such a model."""
    find_model(model)
    words = " ".join(f"word {number}" for number in range(_WORDS))
    rows = [{"prompt": f"{number}:", "completion": f" {words}"} for number in range(_NUM_ROWS)]
    # of a model with a short context, a part of each row is enough
    dataset = {"train": rows, "on_long_rows": "truncate"}
    return Task(model=model, dataset=dataset, search_space={"r": [8, 16, 32, 64]}, name="warm").file


def _require_gpu(task: TaskFile) -> None:
    machine = choose_machine(task.num_gpus, where=task.where("num_gpus"))
    backend = describe_backend(machine.device)
    if backend.backend is not Backend.TRITON:
        raise InputError(
            Problem(
                where="--warm",
                found=f"{machine.device_name}, on which no kernel is compiled: {backend.reason}",
                allowed="a machine with a GPU and Triton",
                hint="Run it on the machine that trains; here a run has nothing to wait for.",
            )
        )
