"""The base model of a task by its configuration, and which of its linears get adapters."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cohort.core.errors import InputError, Problem, UnsupportedModelError
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import adapter_layout, expert_parameters, linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.source import find_model
from cohort.models.targets import select_linears, select_parameters
from cohort.models.weights import stored_problem
from cohort.prepare.adapters.adapter_specs import module_filter, variant_problems
from cohort.tasks.loading import TaskFile

__all__ = ["read_model", "select_modules"]


def read_model(task: TaskFile, problems: list[Problem]) -> tuple[tuple[Path, DecoderConfig] | None, bool]:
    """Return a model that can be trained on, or None and whether it is one of another architecture."""
    try:
        directory = find_model(task.model_name_or_path)
        config = check_checkpoint(directory)
    except InputError as error:
        problems.extend(task.located(problem) for problem in error.problems)
        return None, isinstance(error, UnsupportedModelError)
    problem = stored_problem(config, name=task.quantization, where=task.where("quantization"))
    problems += [] if problem is None else [problem]
    return (directory, config), False


def select_modules(task: TaskFile, config: DecoderConfig, problems: list[Problem]) -> tuple[str, ...] | None:
    wanted, experts, found = task.lora.target_parameters, expert_parameters(config), list[Problem]()
    chosen: tuple[str, ...] = ()
    try:
        # as in PEFT an empty list adapts parameters alone
        if task.lora.target_modules or not wanted:
            chosen = select_linears(
                task.lora.target_modules,
                paths=linear_shapes(config),
                narrowed=module_filter(task),
                parameters=tuple(experts),
            )
    except InputError as error:
        found += error.problems
    try:
        chosen += select_parameters(wanted, paths=tuple(experts), architecture=config.architecture)
    except InputError as error:
        found += error.problems
    if found:
        problems.extend(task.located(problem) for problem in found)
        return None
    with contextlib.suppress(InputError):
        # a space with problems of its own is reported where its configurations are counted
        problems.extend(variant_problems(task, linears=adapter_layout(config, chosen).linears))
    return chosen
