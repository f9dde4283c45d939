"""Validates everything a task needs and trains nothing: task, model files, target modules, tokenizer, every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cohort.core.errors import InputError, Problem
from cohort.data.inspection import RenderedExample, render_examples
from cohort.data.loading import load_dataset
from cohort.data.report import DataReport
from cohort.engine.task_file import TaskFile
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.counts import count_model
from cohort.models.targets import select_linears
from cohort.models.weights import check_checkpoint, load_tokenizer

__all__ = ["CheckReport", "check_task"]

_NUM_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a task amounts to.

    Attributes:
        architecture: Class name of the base model.
        num_parameters: Of the base model.
        target_modules: Full paths of the linears that get an adapter.
        num_trials: Configurations that will be tried.
        data: What reading the rows found.
        examples: The first training rows, decoded from the tokens and masks that training reads.
        notes: What the user may want to know.
    """

    architecture: str
    num_parameters: int
    target_modules: tuple[str, ...]
    num_trials: int
    data: DataReport
    examples: tuple[RenderedExample, ...]
    notes: tuple[str, ...]


def _model_facts(task: TaskFile, problems: list[Problem]) -> tuple[DecoderConfig, tuple[str, ...]] | None:
    """Return the model's configuration and the adapted linears; note what is wrong with the model's files."""
    try:
        config = check_checkpoint(task.model_name_or_path)
    except InputError as error:
        problems.extend(error.problems)
        return None
    try:
        return config, select_linears(task.lora.target_modules, paths=linear_shapes(config))
    except InputError as error:
        problems.extend(replace(problem, where=task.where("lora.target_modules")) for problem in error.problems)
        return None


def _num_trials(task: TaskFile, problems: list[Problem]) -> int:
    try:
        size = task.search_space().size_bound()
    except InputError as error:
        problems.extend(error.problems)
        return 0
    if task.search.sampler == "grid":
        return size or 0
    return task.search.trials if size is None else min(size, task.search.trials)


def check_task(task: TaskFile, *, max_problems: int | None = None) -> CheckReport:
    """Return what the task amounts to.

    Args:
        task: A task that is valid in itself.
        max_problems: Most problems of the data to list; None lists all.

    Raises:
        InputError: every problem of the model's files, the target modules and the rows.
    """
    problems: list[Problem] = []
    model = _model_facts(task, problems)
    num_trials = _num_trials(task, problems)
    data: DataReport | None = None
    examples: Sequence[RenderedExample] = ()
    try:
        tokenizer = load_tokenizer(task.model_name_or_path)
        loaded = load_dataset(
            task.dataset_settings(),
            tokenizer=tokenizer,
            evaluation_max_examples=task.evaluation.max_examples,
            max_problems=max_problems,
        )
        data, examples = loaded.report, render_examples(loaded.train, tokenizer=tokenizer, count=_NUM_EXAMPLES)
    except InputError as error:
        # a model that cannot be found has no tokenizer either: say it once
        problems.extend(problem for problem in error.problems if problem not in problems)
    if problems or model is None or data is None:
        raise InputError(problems)
    config, target_modules = model
    return CheckReport(
        architecture=config.architecture,
        num_parameters=count_model(config).parameters,
        target_modules=target_modules,
        num_trials=num_trials,
        data=data,
        examples=tuple(examples),
        notes=tuple(task.notes()),
    )
