"""Decodes the answers of all trials together, by the very rows of the bank that train.

No adapter is copied: a request names its trial, and its tokens are drawn with the weights that the trial has now. A
trial's weights change only between its answers. What is drawn depends on the request alone, so an answer that has to
begin again, because memory ran out or a process was killed, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from cohort.adapters.bank import AdapterBank
from cohort.adapters.linear import LoraContext
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.serving.engine import ServingEngine
from cohort.serving.kv_blocks import BLOCK_ROWS, blocks_for
from cohort.serving.sampler import Sampling
from cohort.serving.scheduler import Admission, SchedulerSettings
from cohort.serving.sequence import AdapterRef, SequenceRequest
from cohort.serving.step_output import FinishReason, StepOutput
from cohort.training.device_memory import is_out_of_memory, release_cached
from cohort.training.rollouts.answered_step import GivenAnswer

__all__ = ["BASE_MODEL", "AnswerKey", "AskedAnswer", "Decoding"]

# an answer that has begun runs to its end: begun again it would cost its tokens twice
_SETTINGS = SchedulerSettings(max_num_seqs=2048, max_num_batched_tokens=8192, reserves_growth=True)

AnswerKey = tuple[int, int, int]
"""Trial, prompt of its step and place in the prompt's group."""
BASE_MODEL = -1
"""In the place of a trial: the frozen model alone."""


@dataclass(frozen=True, kw_only=True)
class AskedAnswer:
    """An answer that is wanted; ``version`` names the weights, and changes when they do."""

    key: AnswerKey
    version: Hashable
    prompt_tokens: tuple[int, ...]
    most_tokens: int
    sampling: Sampling
    seed: int
    stop_ids: frozenset[int]


@dataclass(kw_only=True)
class _Open:
    asked: AskedAnswer
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


class Decoding:
    """The answers on their way.

    Attributes:
        num_passes, num_tokens: Decoding passes so far, and tokens drawn in them.
    """

    def __init__(
        self,
        decoder: Decoder,
        bank: AdapterBank,
        *,
        slot_of: Callable[[int], int],
        token_budget: int,
        as_trained: bool = False,
        records: bool = True,
    ) -> None:
        """Decode with adapters in ``bank``.

        Args:
            slot_of: The slot of a trial.
            token_budget: Most positions whose keys and values are kept at once; one answer gets what it needs.
            as_trained: As of :class:`~cohort.serving.engine.ServingEngine`.
            records: Record passes as CUDA graphs, which takes longer than a few answers save.
        """
        self._as_trained = as_trained
        # layers that are copied in pass by pass are no place that a graph could know
        self._records = records and decoder.ring is None
        self._decoder, self._bank, self._slot_of = decoder, bank, slot_of
        self._token_budget = token_budget
        self._engine: ServingEngine | None = None
        self._open: dict[int, _Open] = {}
        # the other answers to a prompt whose first is being read: they find its keys and values then
        self._held: dict[tuple[int, int], list[_Open]] = {}
        self.num_passes, self.num_tokens = 0, 0

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    def ask(self, answer: AskedAnswer) -> None:
        """Want an answer; its prompt leaves room for a token in the model's context.

        The first that is wanted to a prompt reads it, and the others, which follow it, need not.
        """
        own, group = _Open(asked=answer), answer.key[:2]
        if group in self._held:
            self._held[group].append(own)
            return
        # of less than a block nothing is found
        if len(answer.prompt_tokens) > BLOCK_ROWS and answer.key[2] == 0:
            self._held[group] = []
        self._submit(own)

    def forget(self, trial_id: int) -> None:
        """Want the answers of a trial no more."""
        for group in [group for group in self._held if group[0] == trial_id]:
            del self._held[group]
        for number in [number for number, own in self._open.items() if own.asked.key[0] == trial_id]:
            del self._open[number]
            assert self._engine is not None, "an open answer is an engine's"
            self._engine.abort(number)

    def step(self) -> list[tuple[AnswerKey, GivenAnswer]]:
        """Run one pass for all answers on their way and return those that it finished.

        With fewer at a time, begun again, where memory runs out; none of them changes.
        """
        assert self._engine is not None, "there is work"
        try:
            outputs = self._engine.step()
        except Exception as error:
            if not is_out_of_memory(error) or self._token_budget < BLOCK_ROWS:
                raise
            outputs = None
        if outputs is None:
            # outside of the handler, whose traceback holds the tensors of the failed pass
            self._token_budget //= 2
            self._reopen(0)
            return []
        self.num_passes += 1
        return [found for output in outputs if (found := self._took(output)) is not None]

    def _took(self, output: StepOutput) -> tuple[AnswerKey, GivenAnswer] | None:
        own = self._open[output.number]
        for other in self._held.pop(own.asked.key[:2], ()):
            self._submit(other)
        if output.token is not None:
            assert output.logprobs is not None, "logarithms are asked for"
            own.tokens.append(output.token)
            own.logps.append(output.logprobs.picked)
            self.num_tokens += 1
        if output.finish is None:
            return None
        del self._open[output.number]
        answer = GivenAnswer(
            tokens=np.array(own.tokens, dtype=np.int32),
            logps=np.array(own.logps, dtype=np.float64),
            is_cut=output.finish is FinishReason.LENGTH,
            is_finite=output.finish is not FinishReason.NOT_FINITE,
        )
        return own.asked.key, answer

    def _submit(self, own: _Open) -> None:
        asked = own.asked
        context = self._decoder.config.max_position_embeddings
        needed = blocks_for(min(len(asked.prompt_tokens) + asked.most_tokens, context))
        if self._engine is None or needed > self._engine.blocks.num_blocks:
            self._reopen(needed)
        assert self._engine is not None, "it has been opened"
        number = self._engine.submit(
            SequenceRequest(
                prompt_tokens=asked.prompt_tokens,
                max_new_tokens=asked.most_tokens,
                adapter=(asked.key[0], asked.version),
                sampling=asked.sampling,
                seed=asked.seed,
                stop_ids=asked.stop_ids,
                keeps_stop=True,
                num_logprobs=0,
                scales_logprobs=True,
            )
        )
        self._open[number] = own

    def _reopen(self, least_blocks: int) -> None:
        """Take a pool of another size; all answers on their way begin again."""
        waiting = (own for held in self._held.values() for own in held)
        open_answers = [_Open(asked=own.asked) for own in (*self._open.values(), *waiting)]
        self._open, self._held, self._engine = {}, {}, None
        release_cached(self._bank.weights_RD.device)
        context = self._decoder.config.max_position_embeddings
        needed = [
            blocks_for(min(len(own.asked.prompt_tokens) + own.asked.most_tokens, context)) for own in open_answers
        ]
        num_blocks = max(self._token_budget // BLOCK_ROWS, least_blocks, *needed, 1)
        self._engine = ServingEngine(
            self._decoder,
            adapters=_TrainingRows(self._bank, self._slot_of),
            num_blocks=num_blocks,
            settings=_SETTINGS,
            # adapters change in their places, which is where a recorded pass reads them
            records_graphs=self._records,
            as_trained=self._as_trained,
        )
        for own in open_answers:
            self._submit(own)


class _TrainingRows:
    """The adapters of a bank whose trials train between their answers; satisfies the engine's protocol."""

    def __init__(self, bank: AdapterBank, slot_of: Callable[[int], int]) -> None:
        self._bank, self._slot_of = bank, slot_of

    @property
    def num_slots(self) -> int:
        return self._bank.num_slots

    def acquire(self, adapter: AdapterRef) -> Admission | None:
        assert isinstance(adapter, tuple), "requests name a trial and the version of its weights"
        if adapter[0] == BASE_MODEL:
            return Admission(slot=None, version=adapter)
        return Admission(slot=self._slot_of(adapter[0]), version=adapter)

    def waits_for_slot(self, adapter: AdapterRef) -> bool:
        del adapter
        return False

    def release(self, adapter: AdapterRef, version: Hashable) -> None:
        """Nothing moves."""

    def take_failures(self) -> list[tuple[object, str]]:
        return []

    def context(self, segments: SegmentTable) -> LoraContext | None:
        return self._bank.context(segments)
