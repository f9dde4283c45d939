"""Packed generation: many prompts of many adapters at once on one frozen model.

Shapes:  T rows of the stream · B live sequences · V vocabulary
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.core.errors import InputError, Problem
from cohort.kernels.segments import SegmentTable
from cohort.models.decoder import Decoder
from cohort.serving.cached_attention import CachedRows, DecodeAttention, PrefillAttention
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, blocks_for
from cohort.serving.sampler import Sampling, pick_tokens

__all__ = ["GenerateRequest", "LoraFor", "PickedToken", "end_of_answer_ids", "generate", "stream"]

LoraFor = Callable[[SegmentTable], LoraContext]
"""What the linears need for a stream laid out by a table: ``AdapterBank.context``."""

# Every product sees at least 16 rows of no sequence at the end and a multiple of 16 in all: what keeps a row's bits its
# own on a CPU (see data.packing).
FILLER_ROWS = 16


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


@torch.no_grad()
def stream(
    decoder: Decoder,
    requests: Sequence[GenerateRequest],
    *,
    lora_for: LoraFor | None = None,
    num_slots: int = 0,
    stop_ids: Collection[int] | None = None,
    sampling: Sampling | None = None,
    token_budget: int = 16_384,
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

    Raises:
        InputError: empty or overlong prompts, or token ids the model does not have; all of them at once.
    """
    limit = decoder.config.max_position_embeddings
    _check(requests, vocab_size=decoder.config.vocab_size, limit=limit, has_adapters=lora_for is not None)
    waiting = deque(
        _Sequence(index, request, most=min(request.max_new_tokens, limit - len(request.prompt_tokens)))
        for index, request in enumerate(requests)
        if request.max_new_tokens > 0
    )
    if not waiting:
        return
    # no more than what all of them together can fill
    needed = [sequence.num_blocks for sequence in waiting]
    num_blocks = max(*needed, min(token_budget // BLOCK_ROWS, sum(needed)), 1)
    cache = KvBlocks(decoder.config, num_blocks=num_blocks, dtype=decoder.dtype, device=decoder.device)
    stops = frozenset(decoder.config.eos_token_ids if stop_ids is None else stop_ids)
    step = _Step(decoder, cache, lora_for=lora_for, num_slots=num_slots, sampling=sampling or Sampling())
    live: list[_Sequence] = []
    while waiting or live:
        fresh = _admit(waiting, cache)
        for sequence, token in [*step.prefill(fresh), *step.decode(live)]:
            kept = None if token is None or token in stops else token
            if kept is not None:
                sequence.generated.append(kept)
            sequence.finished = kept is None or len(sequence.generated) >= sequence.most
            if sequence.finished:
                cache.give_back(sequence.rows)
            yield PickedToken(index=sequence.index, token=kept, is_last=sequence.finished)
        live = [sequence for sequence in [*live, *fresh] if not sequence.finished]


@dataclass
class _Sequence:
    """A request on its way. ``most``: tokens it may generate."""

    index: int
    request: GenerateRequest
    most: int
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    generated: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def num_blocks(self) -> int:
        """Blocks it needs at its longest."""
        return blocks_for(len(self.request.prompt_tokens) + self.most)

    @property
    def length(self) -> int:
        return len(self.request.prompt_tokens) + len(self.generated)


def _admit(waiting: deque[_Sequence], cache: KvBlocks) -> list[_Sequence]:
    """Take sequences in order while the pool has room for all they may grow to: none ever has to be put back."""
    admitted = []
    while waiting and waiting[0].num_blocks <= cache.num_free:
        sequence = waiting.popleft()
        sequence.rows = cache.take(sequence.num_blocks)
        admitted.append(sequence)
    return admitted


class _Step:
    """Runs the model over prompts, or over the newest token of live sequences."""

    def __init__(
        self, decoder: Decoder, cache: KvBlocks, *, lora_for: LoraFor | None, num_slots: int, sampling: Sampling
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._lora_for = lora_for
        self._num_slots = num_slots
        self._sampling = sampling

    def prefill(self, sequences: Sequence[_Sequence]) -> list[tuple[_Sequence, int | None]]:
        """Run whole prompts and return each sequence with its first token."""
        return self._run(sequences, PrefillAttention, tokens_of=lambda sequence: list(sequence.request.prompt_tokens))

    def decode(self, sequences: Sequence[_Sequence]) -> list[tuple[_Sequence, int | None]]:
        """Run each sequence's newest token and return each with its next."""
        return self._run(sequences, DecodeAttention, tokens_of=lambda sequence: [sequence.generated[-1]])

    def _run(
        self,
        sequences: Sequence[_Sequence],
        attention: type[PrefillAttention | DecodeAttention],
        *,
        tokens_of: Callable[[_Sequence], list[int]],
    ) -> list[tuple[_Sequence, int | None]]:
        if not sequences:
            return []
        sequences = _by_slot(sequences)
        cached = [CachedRows(rows=sequence.rows, length=sequence.length) for sequence in sequences]
        tokens = [tokens_of(sequence) for sequence in sequences]
        # the newest tokens stand at the sequence's end
        starts = [sequence.length - len(own) for sequence, own in zip(sequences, tokens, strict=True)]
        positions = [list(range(start, start + len(own))) for start, own in zip(starts, tokens, strict=True)]
        lengths = [len(part) for part in tokens]
        num_rows = _with_filler(sum(lengths))
        lora = None
        if self._lora_for is not None:
            slots = [-1 if s.request.slot is None else s.request.slot for s in sequences]
            table = SegmentTable.from_samples(lengths, slots=slots, num_slots=self._num_slots, num_rows=num_rows)
            lora = self._lora_for(table)
        hidden_TD = self._decoder.forward(
            self._stream(tokens, num_rows),
            positions_T=self._stream(positions, num_rows),
            attention=attention(self._cache, cached, device=self._decoder.device),
            lora=lora,
        )
        last = torch.tensor(np.cumsum(lengths) - 1, device=hidden_TD.device)
        logits_BV = self._logits(hidden_TD.index_select(0, last))
        picked = pick_tokens(
            logits_BV,
            sampling=self._sampling,
            seeds=[sequence.request.seed for sequence in sequences],
            steps=[len(sequence.generated) for sequence in sequences],
        )
        return list(zip(sequences, picked, strict=True))

    def _stream(self, parts: Sequence[Sequence[int]], num_rows: int) -> Tensor:
        flat = [number for part in parts for number in part]
        return torch.tensor(flat + [0] * (num_rows - len(flat)), device=self._decoder.device)

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        count = len(hidden_BD)
        padded = hidden_BD.new_zeros(_with_filler(count), hidden_BD.shape[1])
        padded[:count] = hidden_BD
        return self._decoder.logits(padded)[:count]


def _by_slot(sequences: Sequence[_Sequence]) -> list[_Sequence]:
    """Order by slot, those of no adapter last, as every stream is."""
    return sorted(sequences, key=lambda s: (s.request.slot is None, s.request.slot or 0))


def _with_filler(num_rows: int) -> int:
    return -(-(num_rows + FILLER_ROWS) // FILLER_ROWS) * FILLER_ROWS


def _check(requests: Sequence[GenerateRequest], *, vocab_size: int, limit: int, has_adapters: bool) -> None:
    problems = []
    for index, request in enumerate(requests):
        length = len(request.prompt_tokens)
        unknown = [token for token in request.prompt_tokens if not 0 <= token < vocab_size]
        if not 0 < length < limit:
            problems.append(
                Problem(
                    where=f"prompt {index}",
                    found=f"{length} tokens",
                    allowed=f"1 to {limit - 1} tokens (the model's context is {limit})",
                    hint="Shorten it."
                    if length
                    else "Give it at least one token, such as the beginning-of-text token.",
                )
            )
        if unknown:
            problems.append(
                Problem(
                    where=f"prompt {index}",
                    found=f"token {unknown[0]}",
                    allowed=f"0 to {vocab_size - 1}, the model's vocabulary",
                    hint="Use the tokenizer that belongs to the model.",
                )
            )
    if problems:
        raise InputError(problems)
    if not has_adapters and any(request.slot is not None for request in requests):
        raise ValueError("a request names a slot but there is no lora_for: pass the bank's context")


def end_of_answer_ids(tokenizer: object, model_ids: Sequence[int]) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's and the model's end of sequence."""
    own = getattr(tokenizer, "eos_token_id", None)
    return frozenset(model_ids) | (frozenset() if own is None else frozenset([int(own)]))
