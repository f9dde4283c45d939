"""Scores of rows by the task's metrics: generated answers compared with expected ones, and choices by likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cohort.data.choice_rows import ChoiceRows
from cohort.data.tokenised import TokenisedRows
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.watching.time_spent import TimeSpent
from cohort.metrics import CHOICE_ACCURACY, MetricFailedError, score_texts
from cohort.prepare.metrics import answer_prompts, reference_row, task_choices, task_metrics
from cohort.prepare.preparation import Preparation
from cohort.ranks.answers import Prompt
from cohort.runs.facts import Activity
from cohort.serving.generate import end_of_answer_ids
from cohort.training.objectives import DEFAULT_OBJECTIVE

__all__ = ["RowScores", "Scores"]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What one adapter, or the frozen model, has on some rows.

    Attributes:
        by_metric: The score of each row.
        num_tokens: Tokens that were read and generated for them.
        num_answers: Answers that were generated.
        num_endless: Those of them that were cut because they did not end.
    """

    by_metric: dict[str, tuple[float, ...]] = field(default_factory=dict)
    num_tokens: int = 0
    num_answers: int = 0
    num_endless: int = 0

    def joined(self, other: Scores) -> Scores:
        """Return both together."""
        return Scores(
            by_metric={**self.by_metric, **other.by_metric},
            num_tokens=self.num_tokens + other.num_tokens,
            num_answers=self.num_answers + other.num_answers,
            num_endless=self.num_endless + other.num_endless,
        )


class RowScores:
    """Measures the task's metrics of adapters in one executor. All metrics of text share one generation."""

    def __init__(self, preparation: Preparation, executor: ExecutorShare, *, time_spent: TimeSpent) -> None:
        """Measure with ``executor``; ``time_spent`` adds up the seconds of generation.

        Raises:
            InputError: a metric function can no longer be used.
        """
        self._preparation = preparation
        self._executor, self._time_spent = executor, time_spent
        self._metrics = task_metrics(preparation.task)
        self._compares_choices = CHOICE_ACCURACY in preparation.task.evaluation.measured
        self._choices: dict[tuple[str, tuple[int, ...]], ChoiceRows] = {}

    def of(
        self, trial_ids: Sequence[int] | Sequence[None], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> list[Scores]:
        """Return the scores of each trial (None: the frozen model); of a group of rows, those of its first row.

        Rows of plain text have no prompt to answer, and no score.

        Raises:
            MetricFailedError: a metric function failed; names function, row and message.
        """
        size = self._preparation.group_size
        # the rows of a group share their prompt, and the first has the better answer
        asked = [size * row_id for row_id in row_ids if rows.prompts[size * row_id]]
        found = [Scores() for _ in trial_ids]
        if self._metrics:
            answered = self._of_answers(trial_ids, rows=rows, asked=asked)
            found = [a.joined(b) for a, b in zip(found, answered, strict=True)]
        if self._compares_choices:
            compared = self._of_choices(trial_ids, rows=rows, asked=asked)
            found = [a.joined(b) for a, b in zip(found, compared, strict=True)]
        return found

    def _of_answers(
        self, trial_ids: Sequence[int] | Sequence[None], *, rows: TokenisedRows, asked: Sequence[int]
    ) -> list[Scores]:
        with self._time_spent.on(Activity.GENERATE):
            answers = self._generate(trial_ids, rows=rows, asked=asked)
        references = [reference_row(rows, row_id) for row_id in asked]
        found = []
        for of_trial in answers:
            try:
                scores = score_texts(self._metrics, [answer.text for answer in of_trial], references)
            # the function is the user's, and hours of training must not end with it
            except MetricFailedError as error:
                raise MetricFailedError(
                    f"{error}; what was trained is saved: correct the function and resume the run"
                ) from error
            found.append(
                Scores(
                    by_metric={name: tuple(values) for name, values in scores.items()},
                    num_tokens=sum(answer.num_tokens for answer in of_trial),
                    num_answers=len(of_trial),
                    num_endless=sum(answer.is_endless for answer in of_trial),
                )
            )
        return found

    def _of_choices(
        self, trial_ids: Sequence[int] | Sequence[None], *, rows: TokenisedRows, asked: Sequence[int]
    ) -> list[Scores]:
        """Compare the mean loss per token of the choices, the end-of-sequence token included."""
        choices = self._choices_of(rows, tuple(asked))
        row_ids = range(len(choices.rows))
        own = [trial_id for trial_id in trial_ids if trial_id is not None]
        # of the choices' own tokens, whatever the trials minimise
        plain = DEFAULT_OBJECTIVE
        measured = self._executor.evaluate(own, rows=choices.rows, row_ids=row_ids, objective=plain) if own else {}
        found = []
        for trial_id in trial_ids:
            if trial_id is None:
                losses = self._executor.evaluate_base(rows=choices.rows, row_ids=row_ids)
            else:
                losses = measured[trial_id]
            accuracy = {CHOICE_ACCURACY: choices.accuracy_of(losses.means)}
            found.append(Scores(by_metric=accuracy, num_tokens=losses.num_tokens))
        return found

    def _choices_of(self, rows: TokenisedRows, asked: tuple[int, ...]) -> ChoiceRows:
        # tokenised once: every evaluation asks for the same rows
        key = (rows.fingerprint, asked)
        if key not in self._choices:
            inputs = self._preparation.inputs
            self._choices[key] = task_choices(
                self._preparation.task,
                rows,
                asked,
                data_format=inputs.data.report.format,
                tokenizer=inputs.tokenizer,
            )
        return self._choices[key]

    def _generate(
        self, trial_ids: Sequence[int] | Sequence[None], *, rows: TokenisedRows, asked: Sequence[int]
    ) -> list[list[_Generated]]:
        """Return what is generated, by trial and row."""
        tokenizer, config = self._preparation.inputs.tokenizer, self._preparation.inputs.config
        is_chat = self._preparation.inputs.data.report.is_chat
        context = config.max_position_embeddings
        prompts = answer_prompts(rows, asked, tokenizer=tokenizer, is_chat=is_chat, context=context)
        most = self._preparation.task.evaluation.max_new_tokens
        requests = [Prompt(trial_id=trial_id, tokens=tokens) for trial_id in trial_ids for tokens in prompts]
        # one call for all trials: their answers share the passes of a packed generation
        continued = self._executor.generate(
            requests, max_new_tokens=most, stop_ids=end_of_answer_ids(tokenizer, config.eos_token_ids)
        )
        texts = tokenizer.batch_decode(continued, skip_special_tokens=True)
        flat = [
            _Generated(
                text=text,
                num_tokens=len(prompt.tokens) + len(tokens),
                # the token that ends an answer is none of its tokens
                is_endless=len(tokens) >= min(most, context - len(prompt.tokens)),
            )
            for text, prompt, tokens in zip(texts, requests, continued, strict=True)
        ]
        return [flat[place * len(prompts) : (place + 1) * len(prompts)] for place in range(len(trial_ids))]


@dataclass(frozen=True, kw_only=True)
class _Generated:
    """An answer in words, the tokens read and written for it, and whether it was cut."""

    text: str
    num_tokens: int
    is_endless: bool
