"""The definition of the contract: training, evaluation and answers in one process, the only rank or one of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cohort.core.memory_records import PassKind
from cohort.data.tokenised import TokenisedRows
from cohort.ranks.answers import AnswerGenerator, Prompt
from cohort.ranks.calls import Standing, verb
from cohort.ranks.peer_source import PeerSource, has_parts
from cohort.ranks.shared_bytes import BytesHandle
from cohort.ranks.step_window import StepWindow, run_window
from cohort.ranks.training_executor import TrainingExecutor
from cohort.serving.generate import GenerateRequest, PickedToken, generation_tokens, stream
from cohort.training.executor import Executor
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["LocalExecutor"]


class LocalExecutor(Executor, TrainingExecutor):
    """Trains residents and lets them answer prompts; the only rank, or one of several.

    Attributes:
        launches_ahead: Whether the host is free while a step is computed, so that it can launch the next one.
    """

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
        return super().load(spec, state, rows=rows)

    def run(self, quotas: Mapping[int, int]) -> StepWindow:
        return run_window(self, quotas)

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

        def tokens_of(some: Sequence[GenerateRequest], token_budget: int) -> Iterator[PickedToken]:
            with self.memory.observe(PassKind.EVALUATE, None):
                yield from self._stream(some, stop_ids=stop_ids, token_budget=token_budget)

        return self._generator.continued(prompts, slot_of=self.slot_of, max_new_tokens=max_new_tokens, stream=tokens_of)

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
        self, requests: Sequence[GenerateRequest], *, stop_ids: frozenset[int], token_budget: int
    ) -> Iterator[PickedToken]:
        return stream(
            self.decoder,
            requests,
            lora_for=self.bank.context,
            num_slots=self.bank.num_slots,
            stop_ids=stop_ids,
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
        """Give peers no more parts of divided layers; there is no other process to end."""
        if has_parts(self.decoder):
            self._parts().close()
