"""Packed generation: many prompts of many adapters at once on one frozen model, all known from the start."""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Sequence
from dataclasses import dataclass

from cohort.adapters.linear import LoraContext
from cohort.core.errors import InputError
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.serving.engine import ServingEngine, request_problems
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, blocks_for
from cohort.serving.pass_computer import LoraFor, PassModel, ScoresOf
from cohort.serving.sampler import Sampling
from cohort.serving.scheduler import Admission, SchedulerSettings
from cohort.serving.sequence import AdapterRef, SequenceRequest

__all__ = ["GenerateRequest", "LoraFor", "PickedToken", "end_of_answer_ids", "generate", "generation_tokens", "stream"]

# keys and values that may be kept at once: small models generate thousands of answers together, large ones dozens
_POOL_BYTES = 128 << 20
_LEAST_POOL_TOKENS = 16_384
# all requests are there from the start: one that is admitted runs to its end
_OFFLINE = SchedulerSettings(max_num_seqs=2048, max_num_batched_tokens=8192, reserves_growth=True)


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One prompt to continue.

    Attributes:
        prompt_tokens: At least one token.
        max_new_tokens: Most tokens to generate; the model's context length may end it earlier.
        slot: The adapter's slot in the bank; None for the frozen model alone.
        seed: With a temperature, what the draws depend on: equal requests draw alike.
    """

    prompt_tokens: Sequence[int]
    max_new_tokens: int
    slot: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class PickedToken:
    """The next token of one request.

    Attributes:
        index: The request's place in the list.
        token: None where the sequence ended without another token: at a stop token, or at logits that are not finite.
        is_last: Whether the request is done.
    """

    index: int
    token: int | None
    is_last: bool


def generate(
    decoder: Decoder,
    requests: Sequence[GenerateRequest],
    *,
    lora_for: LoraFor | None = None,
    num_slots: int = 0,
    stop_ids: Collection[int] | None = None,
    sampling: Sampling | None = None,
    token_budget: int = 16_384,
) -> list[list[int]]:
    """Return the generated tokens of each request, without the prompt and without the stop token.

    The arguments and errors are those of :func:`stream`.
    """
    results: list[list[int]] = [[] for _ in requests]
    for picked in stream(
        decoder,
        requests,
        lora_for=lora_for,
        num_slots=num_slots,
        stop_ids=stop_ids,
        sampling=sampling,
        token_budget=token_budget,
    ):
        if picked.token is not None:
            results[picked.index].append(picked.token)
    return results


def stream(
    decoder: PassModel,
    requests: Sequence[GenerateRequest],
    *,
    lora_for: LoraFor | None = None,
    num_slots: int = 0,
    stop_ids: Collection[int] | None = None,
    sampling: Sampling | None = None,
    token_budget: int = 16_384,
    scores_of: ScoresOf | None = None,
) -> Generator[PickedToken, None, None]:
    """Yield the tokens of all requests as they are generated, without the stop tokens.

    Sequences come and go as the budget allows. A sequence's tokens do not depend on its neighbours, on their order or
    on the budget (on a CPU at a fixed thread count, bit for bit). A sequence whose logits are not finite ends there.
    The caller may stop at any token: nothing outlives the iterator.

    Args:
        lora_for: Gives the adapters for a stream, ``bank.context``; may be None when no request names a slot.
        stop_ids: Tokens that end a sequence; by default those of the model's generation settings.
        sampling: By default the likeliest token.
        token_budget: Most positions (prompts and what they may grow to) whose keys and values are kept at once. One
            request that needs more gets what it needs.
        scores_of: As of :class:`~cohort.serving.engine.ServingEngine`.

    Raises:
        InputError: empty or overlong prompts, or token ids the model does not have; all of them at once.
    """
    limit = decoder.config.max_position_embeddings
    _check(requests, vocab_size=decoder.config.vocab_size, limit=limit, has_adapters=lora_for is not None)
    asked = [(index, request) for index, request in enumerate(requests) if request.max_new_tokens > 0]
    if not asked:
        return
    # no more than what all of them together can fill
    needed = [blocks_for(min(len(request.prompt_tokens) + request.max_new_tokens, limit)) for _, request in asked]
    num_blocks = max(*needed, min(token_budget // BLOCK_ROWS, sum(needed)), 1)
    engine = ServingEngine(
        decoder,
        adapters=_BankSlots(lora_for, num_slots=num_slots),
        num_blocks=num_blocks,
        settings=_OFFLINE,
        scores_of=scores_of,
    )
    stops = frozenset(decoder.config.eos_token_ids if stop_ids is None else stop_ids)
    index_of = {}
    for index, request in asked:
        number = engine.submit(
            SequenceRequest(
                prompt_tokens=request.prompt_tokens,
                max_new_tokens=request.max_new_tokens,
                adapter=request.slot,
                sampling=sampling or Sampling(),
                seed=request.seed,
                stop_ids=stops,
            )
        )
        index_of[number] = index
    while engine.has_work:
        for output in engine.step():
            is_last = output.finish is not None
            yield PickedToken(index=index_of[output.number], token=output.token, is_last=is_last)


class _BankSlots:
    """The adapters of a bank that does not change meanwhile."""

    def __init__(self, lora_for: LoraFor | None, *, num_slots: int) -> None:
        self._lora_for, self.num_slots = lora_for, num_slots

    def acquire(self, adapter: AdapterRef) -> Admission | None:
        slot = None if adapter is None else int(str(adapter))
        return Admission(slot=slot, version=adapter)

    def waits_for_slot(self, adapter: AdapterRef) -> bool:
        del adapter
        return False

    def release(self, adapter: AdapterRef, version: Hashable) -> None:
        """Nothing moves."""

    def take_failures(self) -> list[tuple[AdapterRef, str]]:
        return []

    def context(self, segments: SegmentTable) -> LoraContext | None:
        return None if self._lora_for is None else self._lora_for(segments)


def _check(requests: Sequence[GenerateRequest], *, vocab_size: int, limit: int, has_adapters: bool) -> None:
    problems = [
        problem
        for index, request in enumerate(requests)
        for problem in request_problems(
            request.prompt_tokens, where=f"prompt {index}", vocab_size=vocab_size, limit=limit
        )
    ]
    if problems:
        raise InputError(problems)
    if not has_adapters and any(request.slot is not None for request in requests):
        raise ValueError("a request names a slot but there is no lora_for: pass the bank's context")


def generation_tokens(decoder: Decoder) -> int:
    """Return the positions whose keys and values are kept at once where the caller does not say."""
    block_bytes = KvBlocks.block_bytes(decoder.config, dtype=decoder.dtype)
    return max(_LEAST_POOL_TOKENS, _POOL_BYTES // block_bytes * BLOCK_ROWS)


def end_of_answer_ids(tokenizer: object, model_ids: Sequence[int]) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's and the model's end of sequence."""
    own = getattr(tokenizer, "eos_token_id", None)
    return frozenset(model_ids) | (frozenset() if own is None else frozenset([int(own)]))
