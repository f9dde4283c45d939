"""Evaluations of a run: packed validation losses, and metrics of generated text where the task asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cohort.core.estimates import RowValues
from cohort.core.events import Evaluated
from cohort.core.memory_records import PassKind
from cohort.data.tokenise import encode_prompt
from cohort.data.tokenised import TokenisedRows
from cohort.engine.prepare.preparation import Preparation
from cohort.engine.train.executor_share import ExecutorShare
from cohort.engine.train.time_spent import TimeSpent
from cohort.runs.facts import Activity
from cohort.serving.generate import GenerateRequest, end_of_answer_ids, generate
from cohort.training.device_memory import is_out_of_memory, release_cached
from cohort.training.evaluation_loss import EvaluationLoss

__all__ = ["METRICS", "Measured", "RunEvaluator", "exact_match"]


def exact_match(generated: str, reference: str) -> bool:
    """Return whether two texts are equal except for white space at their ends."""
    return generated.strip() == reference.strip()


# one answer is always generated, however small the budget: below this it runs alone
LEAST_GENERATION_TOKENS = 16

METRICS: Mapping[str, Callable[[str, str], bool]] = {"exact_match": exact_match}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Validation loss, further metrics, and the number of tokens read and generated.

    Attributes:
        rows: What the loss and each metric consist of, row by row; ``loss`` is a name among those of the metrics.
    """

    validation_loss: float
    metrics: dict[str, float]
    num_tokens: int
    rows: Mapping[str, RowValues]


class RunEvaluator:
    """Evaluates adapters of one executor on the run's evaluation rows; satisfies the supervisor's ``Evaluator``."""

    def __init__(self, preparation: Preparation, executor: ExecutorShare, *, time_spent: TimeSpent) -> None:
        """Evaluate with ``executor``; ``time_spent`` adds up the seconds of generation."""
        self._preparation = preparation
        self._executor, self._time_spent = executor, time_spent
        self._metric = METRICS.get(preparation.task.evaluation.metric)
        self._generation_tokens = 4 * preparation.sizes.executor.evaluation_token_budget

    def __call__(self, steps: Mapping[int, int]) -> Sequence[Evaluated]:
        """Return the evaluation of resident trials, in the order of ``steps``."""
        rows, row_ids = self._preparation.inputs.data.validation, self._preparation.evaluation_rows
        measured = self.measure(tuple(steps), rows=rows, row_ids=row_ids)
        return [
            Evaluated(
                trial_id=trial_id,
                step=steps[trial_id],
                validation_loss=outcome.validation_loss,
                metrics=outcome.metrics,
                num_tokens=outcome.num_tokens,
            )
            for trial_id, outcome in zip(steps, measured, strict=True)
        ]

    def measure(self, trial_ids: Sequence[int], *, rows: TokenisedRows, row_ids: Sequence[int]) -> list[Measured]:
        """Measure resident trials on any rows."""
        losses = self._executor.evaluate(trial_ids, rows=rows, row_ids=row_ids)
        slots = [self._executor.slot_of(trial_id) for trial_id in trial_ids]
        texts = self._metrics(slots, rows=rows, row_ids=row_ids)
        return [
            _measured(losses[trial_id], scores=scores, num_tokens=num_tokens)
            for trial_id, (scores, num_tokens) in zip(trial_ids, texts, strict=True)
        ]

    def measure_base(self, *, rows: TokenisedRows, row_ids: Sequence[int]) -> Measured:
        """Measure the frozen model itself."""
        loss = self._executor.evaluate_base(rows=rows, row_ids=row_ids)
        ((scores, num_tokens),) = self._metrics([None], rows=rows, row_ids=row_ids)
        return _measured(loss, scores=scores, num_tokens=num_tokens)

    def _metrics(
        self, slots: Sequence[int | None], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> list[tuple[dict[str, tuple[float, ...]], int]]:
        """Return the scores of the rows by metric and the tokens used, for each slot (None: the frozen model)."""
        if self._metric is None:
            return [({}, 0) for _ in slots]
        name: str = self._preparation.task.evaluation.metric
        # a row of plain text has no prompt to answer
        prompted = [row_id for row_id in row_ids if rows.prompts[row_id]]
        with self._time_spent.on(Activity.GENERATE):
            texts = self._generate(slots, prompts=[rows.prompts[row_id] for row_id in prompted])
        found = []
        for of_slot in texts:
            scores = tuple(
                float(self._metric(text, rows.references[row_id]))
                for (text, _), row_id in zip(of_slot, prompted, strict=True)
            )
            found.append(({name: scores}, sum(count for _, count in of_slot)))
        return found

    def _generate(self, slots: Sequence[int | None], *, prompts: Sequence[str]) -> list[list[tuple[str, int]]]:
        """Return, by slot and prompt, the generated text and the tokens read and written."""
        tokenizer = self._preparation.inputs.tokenizer
        room = self._preparation.decoder.config.max_position_embeddings
        most = self._preparation.task.evaluation.max_new_tokens
        is_chat = self._preparation.inputs.data.report.is_chat
        # a prompt that leaves no room is cut: its answer is then wrong, as it would be in use
        encoded = [encode_prompt(prompt, tokenizer=tokenizer, is_chat=is_chat)[: room - 1] for prompt in prompts]
        requests = [
            GenerateRequest(prompt_tokens=tokens, max_new_tokens=most, slot=slot)
            for slot in slots
            for tokens in encoded
        ]
        continued = self._continue(
            requests, end_of_answer_ids(tokenizer, self._preparation.decoder.config.eos_token_ids)
        )
        texts = tokenizer.batch_decode(continued, skip_special_tokens=True)
        flat = [
            (text, len(request.prompt_tokens) + len(tokens))
            for text, request, tokens in zip(texts, requests, continued, strict=True)
        ]
        return [flat[place * len(prompts) : (place + 1) * len(prompts)] for place in range(len(slots))]

    def _continue(self, requests: Sequence[GenerateRequest], ends: frozenset[int]) -> list[list[int]]:
        """Return the generated tokens; with fewer answers at a time if memory runs out, which changes none of them."""
        bank = self._executor.bank
        while True:
            try:
                with self._executor.memory.observe(PassKind.EVALUATE, None):
                    return generate(
                        self._preparation.decoder,
                        requests,
                        lora_for=bank.context,
                        num_slots=bank.num_slots,
                        stop_ids=ends,
                        token_budget=self._generation_tokens,
                    )
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                is_alone = self._generation_tokens < LEAST_GENERATION_TOKENS
                # with one answer at a time only what saves time is left to give up
                if is_alone and not self._executor.make_room():
                    raise
            release_cached(self._executor.memory.device)
            if not is_alone:
                self._generation_tokens //= 2


def _measured(loss: EvaluationLoss, *, scores: Mapping[str, tuple[float, ...]], num_tokens: int) -> Measured:
    """Join what the objective and the generated answers of the same rows gave."""
    means = {name: sum(of_rows) / max(1, len(of_rows)) for name, of_rows in scores.items()}
    of_groups = {name: RowValues.of_scores(values) for name, values in {**loss.group_metrics, **scores}.items()}
    return Measured(
        validation_loss=loss.loss,
        metrics={**loss.metrics, **means},
        num_tokens=loss.num_tokens + num_tokens,
        rows={"loss": RowValues(values=loss.terms, weights=loss.divisors), **of_groups},
    )
