"""What adapters in a bank have on each of the same rows: losses, scores of generated answers, choices by likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cohort.adapter_files.held_out_rows import HeldOutRows
from cohort.adapter_files.pace import BatchProgress, Pace
from cohort.adapter_files.run_model import RunModel
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.core.clock import Clock
from cohort.core.errors import InputError, Problem, SampleTooLargeError
from cohort.core.memory_records import PassKind
from cohort.core.statistics.estimates import RowValues
from cohort.data.choice_rows import ChoiceRows, choice_rows
from cohort.data.packing import SlotSample
from cohort.data.tokenised import TokenisedRows
from cohort.metrics import CHOICE_ACCURACY, LOSS, REWARD, REWARD_MARGIN, REWARD_METRICS, Metric, score_texts
from cohort.prepare.metrics import answer_prompts, reference_row
from cohort.prepare.objectives import task_objective
from cohort.prepare.reference import Reference, require_same_reference
from cohort.prepare.rollouts import scored_rows
from cohort.ranks.rollouts.conversations import Conversations
from cohort.ranks.rollouts.decoding import AskedAnswer, Decoding
from cohort.ranks.rollouts.open_step import EndedConversation
from cohort.ranks.rollouts.reward_evaluation import evaluated_rewards
from cohort.ranks.rollouts.scoring import Scorers
from cohort.serving.generate import GenerateRequest, generation_tokens
from cohort.serving.sampler import Sampling
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluation_loss import BASE_SLOT, EvaluationLoss, evaluation_losses
from cohort.training.micro_batches import MicroBatches, sample_too_large
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.passes import Passes
from cohort.training.rollouts.group_objective import GroupObjective

__all__ = ["HeldOutScores"]

# of one pass, for runs that recorded none; a shortage of memory lowers it
_TOKEN_BUDGET = 4096


class HeldOutScores:
    """Measures adapters on fixed rows, as evaluations of their run measured them: the same rows give the same bits."""

    def __init__(
        self,
        loaded: RunModel,
        held: HeldOutRows,
        *,
        metrics: Sequence[Metric],
        spelled: Sequence[str],
        max_new_tokens: int,
        watcher: Callable[[BatchProgress], None],
        clock: Clock,
    ) -> None:
        """Prepare the rows of ``held``.

        Args:
            metrics: Those of generated text among ``spelled``.
            spelled: All metrics, by the names that users write.
            max_new_tokens: Most tokens of an answer.

        Raises:
            InputError: choices are asked for, and a row has none; answers are, and no row has a prompt.
            MetricFailedError: a metric function fails on the expected answer of the first row, or on an empty one.
        """
        self._loaded, self._held, self._metrics = loaded, held, metrics
        self._rows = _with_reference(held.rows, loaded=loaded)
        self._max_new_tokens, self._watcher, self._clock = max_new_tokens, watcher, clock
        self._asked = tuple(row_id for row_id, prompt in enumerate(held.rows.prompts) if prompt)
        needing = [name for name in spelled if name != LOSS and name not in REWARD_METRICS]
        if needing and not self._asked:
            raise InputError(
                Problem(
                    where="command line --metric",
                    found=f"{', '.join(needing)} with rows that have no prompt",
                    allowed="loss, or rows with a prompt and an answer",
                    hint="Write --metric loss.",
                )
            )
        if self._asked:
            # before minutes of generation, which a function that fails would waste
            first = reference_row(held.rows, self._asked[0])
            score_texts(metrics, [first.reference, ""], [first, first])
        self._choices = self._read_choices() if CHOICE_ACCURACY in spelled else None

    def of(self, slots: Sequence[int | None]) -> list[Mapping[str, RowValues]]:
        """Return what each of ``slots`` (None: the frozen model) has on the rows, by metric; ``loss`` is the first."""
        self._watcher(BatchProgress(phase="measuring the loss", num_done=0, num_rows=0, elapsed_seconds=0.0))
        objective = task_objective(self._loaded.base.task)
        measure = self._rewards if objective.samples_answers else self._losses
        losses = measure(slots, self._rows, objective=objective)
        found = [
            {
                LOSS: RowValues(values=loss.terms, weights=loss.divisors),
                **{
                    name: RowValues.of_scores(values, is_unbounded=name in (REWARD, REWARD_MARGIN))
                    for name, values in loss.group_metrics.items()
                },
            }
            for loss in losses
        ]
        if self._metrics:
            for own, scores in zip(found, self._answer_scores(slots), strict=True):
                own.update(scores)
        if self._choices is not None:
            for own, loss in zip(
                found, self._losses(slots, self._choices.rows, objective=DEFAULT_OBJECTIVE), strict=True
            ):
                own[CHOICE_ACCURACY] = RowValues.of_scores(self._choices.accuracy_of(loss.means))
        return list(found)

    def _read_choices(self) -> ChoiceRows:
        base = self._loaded.base
        return choice_rows(
            self._rows,
            self._asked,
            settings=self._held.settings,
            data_format=base.facts.inputs.data_format or "auto",
            tokenizer=self._loaded.tokenizer,
            can_map=False,
        )

    def _losses(
        self, slots: Sequence[int | None], rows: TokenisedRows, *, objective: Objective
    ) -> list[EvaluationLoss]:
        loaded = self._loaded
        # a pass lays out slots even where only the frozen model reads
        bank = loaded.bank or AdapterBank(AdapterLayout({}), num_slots=1, num_rank_rows=1, device=loaded.machine.device)
        memory = DeviceMemory(loaded.machine.device)
        numbers = [BASE_SLOT if slot is None else slot for slot in slots]

        def too_large(entry: SlotSample, words: str) -> SampleTooLargeError:
            whose = "the base model" if entry.slot == BASE_SLOT else "an adapter"
            return sample_too_large(entry.sample, words, whose=whose, source=rows.sources[entry.sample.sample_id])

        found = evaluation_losses(
            Passes(loaded.decoder, bank, memory=memory, captured=None),
            micro_batches=MicroBatches(
                PassKind.EVALUATE,
                token_budget=loaded.base.facts.sizes.token_budget or _TOKEN_BUDGET,
                memory=memory,
                reliefs=[],
            ),
            objectives=dict.fromkeys(numbers, objective),
            rows=rows,
            row_ids=range(len(rows) // objective.group_size),
            too_large=too_large,
        )
        return [found[number] for number in numbers]

    def _rewards(
        self, slots: Sequence[int | None], rows: TokenisedRows, *, objective: Objective
    ) -> list[EvaluationLoss]:
        loaded = self._loaded
        assert isinstance(objective, GroupObjective), "only such objectives are rewarded"
        scorers = Scorers()
        try:
            found = evaluated_rewards(
                {slot: (slot, objective) for slot in slots},
                rows=scored_rows(rows, task=loaded.base.task),
                row_ids=range(len(rows)),
                scorers=scorers,
                model_stops=loaded.decoder.config.eos_token_ids,
                answers_to=lambda requests, _, sampling: loaded.answers(requests, sampling=sampling),
                conversations_of=lambda asked, own, row_ids: self._conversations(scorers, asked, own, row_ids),
                context=loaded.decoder.config.max_position_embeddings,
            )
        finally:
            scorers.close()
        return [found[slot] for slot in slots]

    def _conversations(
        self, scorers: Scorers, asked: Sequence[AskedAnswer], rows: TokenisedRows, row_ids: Sequence[int]
    ) -> list[EndedConversation]:
        loaded = self._loaded
        bank = loaded.bank or AdapterBank(AdapterLayout({}), num_slots=1, num_rank_rows=1, device=loaded.machine.device)
        tokens = generation_tokens(loaded.decoder)
        decoding = Decoding(loaded.decoder, bank, slot_of=lambda slot: slot, token_budget=tokens, records=False)
        return Conversations(scorers).held(decoding, asked, rows=rows, row_ids=row_ids)

    def _answer_scores(self, slots: Sequence[int | None]) -> list[dict[str, RowValues]]:
        loaded, rows = self._loaded, self._rows
        prompts = answer_prompts(
            rows,
            self._asked,
            tokenizer=loaded.tokenizer,
            is_chat=loaded.base.facts.inputs.is_chat is True,
            context=loaded.decoder.config.max_position_embeddings,
        )
        requests = [
            GenerateRequest(prompt_tokens=tokens, max_new_tokens=self._max_new_tokens, slot=slot)
            for slot in slots
            for tokens in prompts
        ]
        pace = Pace(self._clock, num_rows=len(requests))
        texts = [""] * len(requests)
        for answer in loaded.answers(requests, sampling=Sampling()):
            texts[answer.index] = loaded.text(answer.tokens)
            pace.count(answer)
            self._watcher(pace.progress())
        references = [reference_row(rows, row_id) for row_id in self._asked]
        found = []
        for place in range(len(slots)):
            own = texts[place * len(prompts) : (place + 1) * len(prompts)]
            scores = score_texts(self._metrics, own, references)
            found.append({name: RowValues.of_scores(tuple(values)) for name, values in scores.items()})
        return found


def _with_reference(rows: TokenisedRows, *, loaded: RunModel) -> TokenisedRows:
    """Return the rows with what the run's reference model gives their answers, where its objective compares with it.

    Raises:
        InputError: the reference adapter is no longer there, or is another one.
    """
    task, facts = loaded.base.task, loaded.base.facts
    if not task_objective(task).needs_reference:
        return rows
    require_same_reference(task, recorded=facts.inputs.reference_adapter_hash)
    reference = Reference(
        task=task,
        measured_by=loaded.decoder,
        machine=loaded.machine,
        model_hash=facts.inputs.model_hash or "",
        token_budget=facts.sizes.token_budget or _TOKEN_BUDGET,
    )
    (found,), _ = reference.of_rows([rows])
    return found
