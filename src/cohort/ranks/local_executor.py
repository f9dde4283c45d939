"""The definition of the contract: training, evaluation and answers in one process, the only rank or one of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.core.events import StepDone, TrialFailed
from cohort.core.memory_records import PassKind
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import AnswerGenerator, Prompt, TokenStream
from cohort.ranks.calls import Standing, verb
from cohort.ranks.peer_source import PeerSource, has_parts
from cohort.ranks.rollouts.conversations import Conversations
from cohort.ranks.rollouts.decoding import AskedAnswer, Decoding
from cohort.ranks.rollouts.open_step import EndedConversation
from cohort.ranks.rollouts.reward_evaluation import evaluated_rewards
from cohort.ranks.rollouts.rollout_steps import RolloutSteps
from cohort.ranks.shared_bytes import BytesHandle
from cohort.ranks.step_window import StepWindow, run_window
from cohort.ranks.training_executor import TrainingExecutor
from cohort.serving.generate import GenerateRequest, PickedToken, generation_tokens, stream
from cohort.serving.sampler import Sampling
from cohort.training.evaluation_loss import EvaluationLoss
from cohort.training.executor import Executor
from cohort.training.objectives import DEFAULT_OBJECTIVE
from cohort.training.objectives.objective import Objective
from cohort.training.rollouts.group_objective import GroupObjective
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["LocalExecutor"]


class LocalExecutor(Executor, TrainingExecutor):
    """Trains residents and lets them answer prompts; the only rank, or one of several.

    Attributes:
        launches_ahead: Whether the host is free while a step is computed, so that it can launch the next one.
        samples_answers: Whether trials train on their own answers, so that no step can be launched before the last is
            read.
    """

    samples_answers = False
    _rollouts: RolloutSteps | None = None

    def __init__(self, *args: Any, repeats_smaller: bool = True, **kwargs: Any) -> None:
        """Allocate the bank; the arguments are those of :class:`Executor`."""
        super().__init__(*args, repeats_smaller=repeats_smaller, **kwargs)
        self.launches_ahead = self.bank.weights_RD.is_cuda
        self._generator = AnswerGenerator(
            token_budget=max(4 * self.settings.evaluation_token_budget, generation_tokens(self.decoder)),
            device=self.memory.device,
            make_room=self.make_room,
            repeats_smaller=repeats_smaller,
        )

    def load(
        self,
        spec: TrialSpec,
        state: TrialState | None = None,
        *,
        rows: TokenisedRows | None = None,
        rank: int | None = None,
    ) -> int:
        if rank not in (None, 0):
            raise ValueError(f"rank {rank} of an executor of one rank")
        self.samples_answers |= spec.objective.samples_answers
        return super().load(spec, state, rows=rows)

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        return run_window(self, quotas)

    def drop(self, trial_id: int) -> None:
        if self._rollouts is not None:
            self._rollouts.forget(trial_id)
        super().drop(trial_id)

    def step(self, trial_ids: Sequence[int] | None = None) -> tuple[StepDone, ...]:
        """Run one optimizer step of each of ``trial_ids`` (default: all resident) and return their events.

        Of those that sample answers only the first to have all of them take theirs; others take it in a later call.
        What :meth:`take_failures` returns has taken none and takes no other.
        """
        wanted = self._residents if trial_ids is None else trial_ids
        sampling = [r for r in self._by_slot() if r.spec.trial_id in wanted and r.spec.objective.samples_answers]
        if not sampling:
            return super().step(trial_ids)
        others = sorted(set(wanted) - {resident.spec.trial_id for resident in sampling})
        return (*(super().step(others) if others else ()), *self._sampled().step(sampling))

    @verb
    def take_failures(self) -> tuple[TrialFailed, ...]:
        return () if self._rollouts is None else self._rollouts.take_failures()

    def evaluate(
        self,
        trial_ids: Sequence[int],
        *,
        rows: TokenisedRows,
        row_ids: Sequence[int],
        objective: Objective | None = None,
    ) -> dict[int, EvaluationLoss]:
        """Return the validation loss of resident trials by trial id, or minus the mean reward of their answers."""
        own = {trial_id: objective or self._residents[trial_id].spec.objective for trial_id in trial_ids}
        if not all(each.samples_answers for each in own.values()):
            return super().evaluate(trial_ids, rows=rows, row_ids=row_ids, objective=objective)
        found = self._rewarded(dict(own.items()), rows=rows, row_ids=row_ids)
        return {trial_id: outcome for trial_id, outcome in found.items() if trial_id is not None}

    def evaluate_base(
        self, *, rows: TokenisedRows, row_ids: Sequence[int], objective: Objective = DEFAULT_OBJECTIVE
    ) -> EvaluationLoss:
        if objective.samples_answers:
            return self._rewarded({None: objective}, rows=rows, row_ids=row_ids)[None]
        return super().evaluate_base(rows=rows, row_ids=row_ids, objective=objective)

    def _rewarded(
        self, objectives: Mapping[int | None, Objective], *, rows: TokenisedRows, row_ids: Sequence[int]
    ) -> dict[int | None, EvaluationLoss]:
        asked = {}
        for trial_id, objective in objectives.items():
            assert isinstance(objective, GroupObjective), "only such objectives sample answers"
            asked[trial_id] = (None if trial_id is None else self.slot_of(trial_id), objective)
        return evaluated_rewards(
            asked,
            rows=rows,
            row_ids=row_ids,
            scorers=self._sampled().scorers,
            model_stops=self.decoder.config.eos_token_ids,
            answers_to=lambda requests, stops, sampling: self._generator.answers(
                requests, stream=self._streams(stops, sampling)
            ),
            conversations_of=self._conversations_of,
            context=self.decoder.config.max_position_embeddings,
        )

    def _conversations_of(
        self, asked: Sequence[AskedAnswer], rows: TokenisedRows, row_ids: Sequence[int]
    ) -> list[EndedConversation]:
        # a pool next to that of answers on their way, which lasts as long as the evaluation
        decoding = Decoding(
            self.decoder, self.bank, slot_of=self.slot_of, token_budget=self._generator.token_budget, records=False
        )
        with self.memory.observe(PassKind.EVALUATE, None):
            return Conversations(self._sampled().scorers).held(decoding, asked, rows=rows, row_ids=row_ids)

    def _sampled(self) -> RolloutSteps:
        """Return the steps of trials that sample answers; the first call begins to keep keys and values for them."""
        if self._rollouts is None:
            self._rollouts = RolloutSteps(
                self.decoder,
                self.bank,
                slot_of=self.slot_of,
                train=self.train_answers,
                token_budget=self.settings.answer_tokens or self._generator.token_budget,
                as_trained=self.draws_as_trained,
            )
        return self._rollouts

    def lower_token_budgets(self, budgets: Mapping[PassKind, int]) -> None:
        """Lower the budget of each kind of pass; answers are generated in the share that is left to evaluations."""
        super().lower_token_budgets(budgets)
        self._generator.lower(share=self.token_budgets[PassKind.EVALUATE] / self.settings.evaluation_token_budget)

    def standing(self) -> Standing:
        """Return what every answer of this rank says of it."""
        return Standing(
            shortages=self.take_shortages(), token_budgets=self.token_budgets, num_recomputed=self.num_recomputed
        )

    @property
    def bank_bytes(self) -> int:
        return self.bank.num_bytes

    @property
    def num_recomputed(self) -> int:
        return self.gradient_checkpointing.num_passes

    def lower_kept_tokens(self, keep_tokens: int) -> None:
        self.gradient_checkpointing.lower(keep_tokens)

    def make_room(self) -> bool:
        return any(relief() for relief in self.reliefs)

    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, stop_ids: frozenset[int]) -> list[list[int]]:
        """Return the likeliest continuation of each prompt, without the stop token.

        With fewer answers at a time if memory runs out, which changes none of them.
        """
        return self._generator.continued(
            prompts, slot_of=self.slot_of, max_new_tokens=max_new_tokens, stream=self._streams(stop_ids)
        )

    def _streams(self, stop_ids: frozenset[int], sampling: Sampling | None = None) -> TokenStream:
        def tokens_of(some: Sequence[GenerateRequest], token_budget: int) -> Iterator[PickedToken]:
            with self.memory.observe(PassKind.EVALUATE, None):
                for picked in self._stream(some, stop_ids=stop_ids, token_budget=token_budget, sampling=sampling):
                    # between two passes, or two tokens of one: it costs nothing where no other work waits
                    self.memory.before_pass()
                    yield picked

        return tokens_of

    @verb
    def share_parts(self) -> BytesHandle:
        """Return the handle to this rank's parts of divided layers."""
        return self._parts().handle

    @verb
    def connect_parts(self, handles: Sequence[BytesHandle]) -> tuple[str, ...]:
        """Open the parts of divided layers of all ranks, in their order; return what had to be done instead, in words.

        Raises:
            OSError, RuntimeError: the parts of a rank cannot be reached.
        """
        notes = self._parts().connect(handles)
        assert self.decoder.ring is not None, "divided layers pass through a ring"
        # passes that measured memory before there were peers left incomplete layers
        self.decoder.ring.forget()
        return notes

    def _stream(
        self,
        requests: Sequence[GenerateRequest],
        *,
        stop_ids: frozenset[int],
        token_budget: int,
        sampling: Sampling | None = None,
    ) -> Iterator[PickedToken]:
        return stream(
            self.decoder,
            requests,
            lora_for=self.bank.context,
            num_slots=self.bank.num_slots,
            stop_ids=stop_ids,
            sampling=sampling,
            token_budget=token_budget,
        )

    def _parts(self) -> PeerSource:
        source = None if self.decoder.ring is None else self.decoder.ring.source
        assert isinstance(source, PeerSource), "no layer is divided over the ranks"
        return source

    def rank_of(self, trial_id: int) -> int:
        del trial_id
        return 0

    def close(self) -> None:
        """Give peers no more parts of divided layers, and end reward functions; there is no other rank to end."""
        if self._rollouts is not None:
            self._rollouts.close()
        if has_parts(self.decoder):
            self._parts().close()
