"""The rows of a task, tokenised for its base model."""

from __future__ import annotations

from typing import Any

from cohort.core.errors import InputError, Problem
from cohort.data.files.reading import are_sources_local, check_examples
from cohort.data.loading import LoadedDataset
from cohort.data.problems import LISTED_PROBLEMS
from cohort.models.config import DecoderConfig
from cohort.prepare.rows.ahead import settle_rows_ahead
from cohort.prepare.rows.request import RowsRequest
from cohort.tasks.task_file import TaskFile

__all__ = ["are_rows_local", "check_rows", "context_problems", "read_rows"]


def read_rows(
    task: TaskFile,
    problems: list[Problem],
    *,
    context: int | None,
    max_problems: int | None,
    can_skip: bool,
) -> tuple[Any, LoadedDataset] | None:
    """Return tokenizer and rows; None where ``problems`` got what is wrong with them.

    Args:
        context: Most tokens that the base model was trained on, where that is known.
        max_problems, can_skip: As for :func:`cohort.data.loading.load_dataset`.
    """
    # wait for the process that may be reading these rows
    settle_rows_ahead()
    try:
        request = RowsRequest.of(task)
    except InputError as error:
        problems.extend(map(task.located, error.problems))
        return None
    try:
        tokenizer = request.tokenizer()
    except InputError as error:
        # a model that cannot be found has no tokenizer either: say it once
        problems.extend(found for found in map(task.located, error.problems) if found not in problems)
        check_rows(task, problems, max_problems=max_problems, can_skip=can_skip)
        return None
    try:
        loaded = request.load(tokenizer, context=context, max_problems=max_problems, can_skip=can_skip)
    except InputError as error:
        problems.extend(map(task.located, error.problems))
        return None
    return tokenizer, loaded


def check_rows(
    task: TaskFile, problems: list[Problem], *, max_problems: int | None = LISTED_PROBLEMS, can_skip: bool = True
) -> None:
    """Add to ``problems`` what is wrong with the rows whatever their tokenizer: that of the base model is not known.

    Rows of the hub are not read. The arguments are those of :func:`read_rows`.
    """
    if not are_rows_local(task):
        return
    try:
        check_examples(task.dataset_settings(), max_problems=max_problems, can_skip=can_skip)
    except InputError as error:
        problems.extend(map(task.located, error.problems))


def are_rows_local(task: TaskFile) -> bool:
    """Return whether the rows can be read at once: no user should wait for a download to learn of a typing error."""
    return are_sources_local(task.dataset_settings())


def context_problems(task: TaskFile, config: DecoderConfig, data: LoadedDataset) -> list[Problem]:
    """Return the problems of inputs that are correct alone but not together."""
    problems = []
    longest = data.longest
    # the model was never trained on positions beyond its context
    limit = config.max_position_embeddings
    if longest > limit:
        problems.append(
            Problem(
                where=task.where("dataset.max_length"),
                found=f"rows of up to {longest} tokens",
                allowed=f"at most {limit} tokens, the model's context",
                hint=f"Write max_length: {limit}.",
            )
        )
    return problems
