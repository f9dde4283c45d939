"""Fills the caches of a machine before the first run: its kernels are compiled, and what passes take is measured.

What a run does before its first step, and nothing else: all of it ends up in caches that later runs find.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cohort.core.cache_directory import default_cache_directory
from cohort.core.clock import Clock, SystemClock
from cohort.core.errors import InputError, Problem
from cohort.engine.run_start import prepare_task
from cohort.engine.train.progress import ProgressWatcher, RunProgress
from cohort.kernels.backend import Backend, describe_backend
from cohort.machine.machine import choose_machine
from cohort.machine.writable_directory import require_writable
from cohort.memory.size_inputs import SizeRequest
from cohort.models.source import find_model
from cohort.tasks.loading import load_task
from cohort.tasks.task import Task
from cohort.tasks.task_file import TaskFile

__all__ = ["WarmReport", "warm_caches"]

_TASK_SUFFIXES = (".yaml", ".yml", ".json")
# rows of a usual length: tiles are chosen by tokens of a pass and by a row's length
_NUM_ROWS, _WORDS = 64, 120


@dataclass(frozen=True, kw_only=True)
class WarmReport:
    """What was done.

    Attributes:
        model: The base model, as the task names it.
        device: What it was done for.
        phases: (what, seconds) of all that took time, in order.
        caches: Where the results are.
        is_task: Whether it was done for a task file, whose rows decide which passes are measured.
    """

    model: str
    device: str
    phases: tuple[tuple[str, float], ...]
    caches: tuple[str, ...]
    is_task: bool


class _Phases:
    """Times the phases of a preparation, and passes them on."""

    def __init__(self, watcher: ProgressWatcher, clock: Clock) -> None:
        self._watcher, self._clock = watcher, clock
        self._began: list[tuple[str, float]] = []

    def update(self, progress: RunProgress) -> None:
        if not self._began or self._began[-1][0] != progress.phase:
            self._began.append((progress.phase, self._clock.monotonic()))
        self._watcher.update(progress)

    def note(self, text: str) -> None:
        self._watcher.note(text)

    def ended(self) -> tuple[tuple[str, float], ...]:
        ends = [*(began for _, began in self._began[1:]), self._clock.monotonic()]
        return tuple((what, end - began) for (what, began), end in zip(self._began, ends, strict=True))


def warm_caches(model_or_task: str, *, watcher: ProgressWatcher, clock: Clock | None = None) -> WarmReport:
    """Do what a run does before its first step, and leave it in the caches.

    Args:
        model_or_task: A task file; or a base model, a hub id or a directory, for usual ranks on all of its linears.
        watcher: Receives what is being done.
        clock: Measures it.

    Raises:
        InputError: there is no such model or file, no GPU that kernels are compiled for, or a cache cannot be written.
    """
    clock = clock or SystemClock()
    is_task = model_or_task.endswith(_TASK_SUFFIXES)
    task = load_task(model_or_task) if is_task else _usual_task(model_or_task)
    _require_gpu(task)
    caches = (default_cache_directory(), _triton_cache())
    for cache in caches:
        require_writable(cache, hint="Set COHORT_CACHE_DIR and TRITON_CACHE_DIR to directories on a disk with room.")
    phases = _Phases(watcher, clock)
    preparation = prepare_task(task, watcher=phases, clock=clock, request=SizeRequest())
    return WarmReport(
        model=task.model_name_or_path,
        device=preparation.machine.device_name,
        phases=phases.ended(),
        caches=tuple(map(str, caches)),
        is_task=is_task,
    )


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


def _triton_cache() -> Path:
    configured = os.environ.get("TRITON_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".triton" / "cache"
