"""The metrics of a task before anything trains: made, tried on a row, and their choices looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cohort.core.errors import InputError, Problem
from cohort.data.choice_rows import ChoiceRows, choice_rows
from cohort.data.loading import LoadedDataset
from cohort.data.tokenise import encode_prompt
from cohort.data.tokenised import TokenisedRows
from cohort.metrics import (
    CHOICE_ACCURACY,
    Metric,
    MetricFailedError,
    ReferenceRow,
    build_metrics,
    needs_generation,
    score_texts,
)
from cohort.tasks.task_file import TaskFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["answer_prompts", "function_identities", "metric_problems", "reference_row", "task_choices", "task_metrics"]


def task_metrics(task: TaskFile) -> tuple[Metric, ...]:
    """Return the metrics of generated text that a task asks for.

    Raises:
        InputError: a function cannot be used, or a package is not installed.
    """
    problems: list[Problem] = []
    metrics: list[Metric] = []
    for name in filter(needs_generation, task.evaluation.measured):
        key = "metric" if name == task.evaluation.metric else "metrics"
        try:
            where = task.where(f"evaluation.{key}")
            metrics += build_metrics([name], options=task.evaluation.options, where=where)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return tuple(metrics)


def function_identities(task: TaskFile) -> dict[str, str]:
    """Return the SHA-256 of each metric function's code, by the name of its metric."""
    return {metric.name: metric.identity for metric in task_metrics(task) if metric.identity is not None}


def reference_row(rows: TokenisedRows, row_id: int) -> ReferenceRow:
    """Return what metrics compare an answer to row ``row_id`` with."""
    return ReferenceRow(
        where=rows.sources[row_id],
        prompt=rows.prompts[row_id],
        reference=rows.references[row_id],
        columns=rows.columns[row_id] if rows.columns else "{}",
    )


def answer_prompts(
    rows: TokenisedRows, row_ids: Sequence[int], *, tokenizer: PreTrainedTokenizerBase, is_chat: bool, context: int
) -> list[Sequence[int]]:
    """Return the tokens from which the answer to each of ``row_ids`` is generated.

    A prompt that leaves no room in the model's ``context`` is cut: its answer is then wrong, as it would be in use.
    """
    return [
        encode_prompt(rows.prompts[row_id], tokenizer=tokenizer, is_chat=is_chat)[: context - 1] for row_id in row_ids
    ]


def task_choices(
    task: TaskFile, rows: TokenisedRows, row_ids: tuple[int, ...], *, data_format: str, tokenizer: Any
) -> ChoiceRows:
    """Return the choices of ``row_ids``.

    Raises:
        InputError: a row has none, or its answer is none of them.
    """
    return choice_rows(rows, row_ids, settings=task.dataset_settings(), data_format=data_format, tokenizer=tokenizer)


def metric_problems(task: TaskFile, data: LoadedDataset, *, tokenizer: Any) -> list[Problem]:
    """Return why the metrics of ``task`` cannot be measured on its validation rows.

    Functions of the user are called: with the expected answer of the first row, and with an empty one.
    """
    rows, evaluation = data.validation, task.evaluation
    if not evaluation.measured:
        return []
    asked = next((row_id for row_id, prompt in enumerate(rows.prompts) if prompt), None)
    if asked is None:
        key = "metric" if evaluation.metric in evaluation.measured else "metrics"
        return [
            Problem(
                where=task.where(f"evaluation.{key}"),
                found=f"{', '.join(evaluation.measured)} with rows that have no prompt ({data.report.format})",
                allowed="loss, or rows with a prompt and an answer",
                hint="Write metric: loss." if key == "metric" else "Remove metrics.",
            )
        ]
    problems: list[Problem] = []
    try:
        problems += _trial_calls(task, task_metrics(task), reference_row(rows, asked))
    except InputError as error:
        problems += error.problems
    if CHOICE_ACCURACY in evaluation.measured:
        # the last comparison of a run takes all of them
        for rows in (data.all_validation, *([] if data.test is None else [data.test])):
            asked_rows = tuple(row_id for row_id, prompt in enumerate(rows.prompts) if prompt)
            try:
                task_choices(task, rows, asked_rows, data_format=data.report.format, tokenizer=tokenizer)
            except InputError as error:
                problems += error.problems
    return problems


def _trial_calls(task: TaskFile, metrics: tuple[Metric, ...], row: ReferenceRow) -> list[Problem]:
    problems = []
    for metric in metrics:
        try:
            # an untrained model may well answer nothing
            score_texts([metric], [row.reference, ""], [row, row])
        except MetricFailedError as error:
            key = "metric" if metric.name == task.evaluation.metric_name else "metrics"
            problems.append(
                Problem(
                    where=task.where(f"evaluation.{key}"),
                    found=str(error),
                    allowed="a function that returns a finite number for every text, also for an empty one",
                    hint="Correct the function.",
                )
            )
    return problems
