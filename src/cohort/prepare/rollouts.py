"""Tasks whose trials train on their own answers: what these do not go with yet, and what rewards the answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cohort.core.errors import Problem
from cohort.core.units import counted
from cohort.data.loading import LoadedDataset
from cohort.data.tokenised import AnswerScoring, TokenisedRows
from cohort.memory.rank_groups import GROUP_STRATEGIES
from cohort.models.config import DecoderConfig
from cohort.prepare.objectives import task_objective
from cohort.tasks.task_file import TaskFile

__all__ = ["rollout_problems", "scored_rows", "with_scoring"]


def with_scoring(data: LoadedDataset, *, task: TaskFile) -> LoadedDataset:
    """Return the rows with what rewards answers to them, where the task's trials draw any."""
    return replace(
        data,
        train=scored_rows(data.train, task=task),
        validation=scored_rows(data.validation, task=task),
        all_validation=scored_rows(data.all_validation, task=task),
        test=None if data.test is None else scored_rows(data.test, task=task),
    )


def scored_rows(rows: TokenisedRows, *, task: TaskFile) -> TokenisedRows:
    """Return rows with what rewards answers to them, where the task's trials draw any."""
    if task.rewards is None:
        return rows
    scoring = AnswerScoring(
        tokenizer=task.model_name_or_path,
        rewards=task.rewards.plan(),
        num_generations=task.evaluation.num_generations,
        chat_template=task.dataset.chat_template,
    )
    return replace(rows, scoring=scoring)


def rollout_problems(
    task: TaskFile, config: DecoderConfig, data: LoadedDataset, *, num_ranks: int
) -> Iterator[Problem]:
    """Yield what keeps a task from training on its own answers; nothing for one that does not."""
    if not task_objective(task).samples_answers:
        return
    name = task.objective.type

    def refused(key: str, found: str, allowed: str, hint: str) -> Problem:
        return Problem(where=task.where(key), found=f"{found} with {name}", allowed=allowed, hint=hint)

    if num_ranks > 1 and task.strategy in GROUP_STRATEGIES:
        yield refused(
            "strategy",
            f"{task.strategy}, which divides a model among {counted(num_ranks, 'rank')},",
            "replicas | adapter_parallel: each rank decodes the answers of its own trials",
            "Write strategy: replicas.",
        )
    if task.lora.modules_to_save:
        yield refused(
            "lora.modules_to_save",
            ", ".join(task.lora.modules_to_save),
            "adapters alone",
            "Remove modules_to_save.",
        )
    yield from _long_prompts(config, data)


def _long_prompts(config: DecoderConfig, data: LoadedDataset) -> Iterator[Problem]:
    """Yield the first prompt that leaves no room for an answer."""
    context = config.max_position_embeddings
    for rows in (data.train, data.all_validation, *([] if data.test is None else [data.test])):
        longest = int(rows.lengths.argmax())
        if rows.lengths[longest] >= context:
            num_long = int((rows.lengths >= context).sum())
            yield Problem(
                where=rows.sources[longest],
                found=f"a prompt of {rows.lengths[longest]:,} tokens, one of {num_long:,} without room for an answer",
                allowed=f"at most {context - 1:,} tokens: the model reads {context:,}",
                hint=f"Write dataset.max_length: {context - 1}, which leaves longer prompts out, or shorten them.",
            )
            return
