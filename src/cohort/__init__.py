"""Cohort: train a whole cohort of LoRA adapters at once on one frozen model and keep the best.

Names are imported when they are first used, so that ``import cohort`` costs next to nothing and touches no GPU.

A task says what to tune: a base model, rows, and what to search.

>>> import cohort
>>> task = cohort.Task(
...     name="first",
...     model="model",
...     dataset="train.jsonl",
...     search_space={"learning_rate": [1e-3, 1e-2]},
...     training={"max_steps": 2},
...     num_gpus=0,
... )
>>> task.name
'first'

It is trained into a run directory, where the best adapter lies in PEFT's format:

>>> result = cohort.run(task, run_directory="runs/first", progress=False)
>>> sorted(path.name for path in result.adapter_directory.glob("adapter*"))
['adapter_config.json', 'adapter_model.safetensors']

What is wrong is named with its key, what is allowed and what to do:

>>> cohort.Task(model="model", dataset="train.jsonl", training={"max_step": 2})
Traceback (most recent call last):
cohort.tasks.loading.TaskFileError: Task: training.max_step: found ... Did you mean training.max_steps? Rename it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from cohort.core.process.blas_sums import keep_order_of_sums
from cohort.version import __version__

if TYPE_CHECKING:
    from cohort.api import Engine, load, load_run, resume, run, tune
    from cohort.api.service_client import ServiceClient
    from cohort.core.errors import CohortError, InputError, Problem
    from cohort.engine.callbacks.callback_caller import CallbackError
    from cohort.engine.callbacks.callback_reports import EvaluationReport, StepReport, TrialEndReport
    from cohort.engine.tune import RunOptions
    from cohort.runs.results.task_result import TaskResult, TasksFailedError
    from cohort.tasks.loading import TaskFile, load_task
    from cohort.tasks.task import Task
    from cohort.tuning.early_exit.settings import EarlyExitSettings as EarlyExit

__all__ = [
    "CallbackError",
    "CohortError",
    "EarlyExit",
    "Engine",
    "EvaluationReport",
    "InputError",
    "Problem",
    "RunOptions",
    "ServiceClient",
    "StepReport",
    "Task",
    "TaskFile",
    "TaskResult",
    "TasksFailedError",
    "TrialEndReport",
    "__version__",
    "load",
    "load_run",
    "load_task",
    "resume",
    "run",
    "tune",
]

# before anything computes
keep_order_of_sums()

# public name -> the module that holds it, and its name there
_HOMES = {
    "CallbackError": ("cohort.engine.callbacks.callback_caller", "CallbackError"),
    "CohortError": ("cohort.core.errors", "CohortError"),
    "EarlyExit": ("cohort.tuning.early_exit.settings", "EarlyExitSettings"),
    "Engine": ("cohort.api", "Engine"),
    "EvaluationReport": ("cohort.engine.callbacks.callback_reports", "EvaluationReport"),
    "InputError": ("cohort.core.errors", "InputError"),
    "Problem": ("cohort.core.errors", "Problem"),
    "RunOptions": ("cohort.engine.tune", "RunOptions"),
    "ServiceClient": ("cohort.api.service_client", "ServiceClient"),
    "StepReport": ("cohort.engine.callbacks.callback_reports", "StepReport"),
    "Task": ("cohort.tasks.task", "Task"),
    "TaskFile": ("cohort.tasks.loading", "TaskFile"),
    "TaskResult": ("cohort.runs.results.task_result", "TaskResult"),
    "TasksFailedError": ("cohort.runs.results.task_result", "TasksFailedError"),
    "TrialEndReport": ("cohort.engine.callbacks.callback_reports", "TrialEndReport"),
    "load": ("cohort.api", "load"),
    "load_run": ("cohort.api", "load_run"),
    "load_task": ("cohort.tasks.loading", "load_task"),
    "resume": ("cohort.api", "resume"),
    "run": ("cohort.api", "run"),
    "tune": ("cohort.api", "tune"),
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(importlib.import_module(module), attribute)
    # layers are public as well: `cohort.adapters.AdapterBank` works after `import cohort`
    if name in _layers():
        return importlib.import_module(f"cohort.{name}")
    raise AttributeError(f"module 'cohort' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_layers()})


def _layers() -> set[str]:
    return {entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg}
