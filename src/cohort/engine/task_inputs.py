"""What a task names, read and checked together: model files, target modules, tokenizer and every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.data.loading import LoadedDataset, load_dataset
from cohort.engine.task_file_model import TaskFile
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config import DecoderConfig
from cohort.models.source import find_model
from cohort.models.targets import select_linears
from cohort.models.weights import check_checkpoint, load_tokenizer

__all__ = ["TaskInputs", "read_inputs"]

_LISTED_PROBLEMS = 20


@dataclass(frozen=True, kw_only=True)
class TaskInputs:
    """A task's inputs, whole and fitting each other; no weight has been read yet.

    Attributes:
        model_directory: Local files of the base model.
        config: Its configuration.
        target_modules: Full paths of the linears that get an adapter.
        tokenizer: The base model's tokenizer.
        data: Tokenised rows and what was found in them.
        num_trials: Configurations that will be tried.
    """

    model_directory: Path
    config: DecoderConfig
    target_modules: tuple[str, ...]
    tokenizer: Any
    data: LoadedDataset
    num_trials: int


def read_inputs(
    task: TaskFile, *, max_problems: int | None = _LISTED_PROBLEMS, also: Sequence[Problem] = ()
) -> TaskInputs:
    """Read and check everything that ``task`` names.

    Args:
        task: A task that is valid in itself.
        max_problems: Most problems of the data to list; None lists all.
        also: Problems that are known already, to be listed with the others.

    Raises:
        InputError: every problem of the model's files, the target modules, the search space and the rows.
    """
    problems = list(also)
    model = _read_model(task, problems)
    num_trials = _count_trials(task, problems)
    tokenised = _read_data(task, problems, max_problems=max_problems)
    if model is not None and tokenised is not None:
        problems += _misfits(task, model[1], tokenised[1])
    if problems or model is None or tokenised is None:
        raise InputError(problems)
    model_directory, config, target_modules = model
    return TaskInputs(
        model_directory=model_directory,
        config=config,
        target_modules=target_modules,
        tokenizer=tokenised[0],
        data=tokenised[1],
        num_trials=num_trials,
    )


def _read_model(task: TaskFile, problems: list[Problem]) -> tuple[Path, DecoderConfig, tuple[str, ...]] | None:
    try:
        directory = find_model(task.model_name_or_path)
        config = check_checkpoint(directory)
    except InputError as error:
        problems.extend(error.problems)
        return None
    try:
        return directory, config, select_linears(task.lora.target_modules, paths=linear_shapes(config))
    except InputError as error:
        problems.extend(replace(problem, where=task.where("lora.target_modules")) for problem in error.problems)
        return None


def _count_trials(task: TaskFile, problems: list[Problem]) -> int:
    try:
        size = task.search_space().size_bound()
    except InputError as error:
        problems.extend(error.problems)
        return 0
    if task.search.sampler == "grid":
        return size or 0
    return task.search.trials if size is None else min(size, task.search.trials)


def _read_data(
    task: TaskFile, problems: list[Problem], *, max_problems: int | None
) -> tuple[Any, LoadedDataset] | None:
    try:
        tokenizer = load_tokenizer(task.model_name_or_path)
        loaded = load_dataset(
            task.dataset_settings(),
            tokenizer=tokenizer,
            evaluation_max_examples=task.evaluation.max_examples,
            max_problems=max_problems,
        )
    except InputError as error:
        # a model that cannot be found has no tokenizer either: say it once
        problems.extend(problem for problem in error.problems if problem not in problems)
        return None
    return tokenizer, loaded


def _misfits(task: TaskFile, config: DecoderConfig, data: LoadedDataset) -> list[Problem]:
    """Return what is right in itself but not together."""
    problems = []
    longest = int(max(data.train.lengths.max(), data.validation.lengths.max()))
    limit = config.max_position_embeddings
    if longest > limit:
        problems.append(
            Problem(
                where=task.where("dataset.max_length"),
                found=f"rows of up to {longest} tokens",
                allowed=f"at most {limit} tokens, the model's context",
                mend=f"Write max_length: {limit}.",
            )
        )
    if task.evaluation.metric != "loss" and not any(data.validation.prompts):
        problems.append(
            Problem(
                where=task.where("evaluation.metric"),
                found=f"{task.evaluation.metric} with rows that have no prompt ({data.report.format})",
                allowed="loss, or rows with a prompt and an answer",
                mend="Write metric: loss.",
            )
        )
    return problems
