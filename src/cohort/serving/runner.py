"""One pass of the model over what the scheduler planned, and the tokens that it gives.

Shapes:  T rows of the stream · B sequences whose next token is picked · D hidden width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import stage_together
from cohort.models.decoder import Decoder
from cohort.serving.cached_attention import CachedAttention, NewPositions
from cohort.serving.decode_graphs import DecodeGraphs, DecodeRow, rows_of_graph
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks
from cohort.serving.sampler import TokenLogprobs, pick_tokens, token_logprobs
from cohort.serving.scheduler import StepPlan
from cohort.serving.sequence import LiveSequence

__all__ = ["LoraFor", "NextToken", "PassRunner", "SlotContext"]

LoraFor = Callable[[SegmentTable], LoraContext]
"""What the linears need for a stream laid out by a table: ``AdapterBank.context``."""

# Every product sees at least 16 rows of no sequence at the end and a multiple of 16 in all: what keeps a row's bits its
# own on a CPU (see data.packing).
FILLER_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """The next token of a sequence; None where its logits are not finite."""

    sequence: LiveSequence
    token: int | None
    logprobs: TokenLogprobs | None = None


class SlotContext(Protocol):
    """The adapters of a pass."""

    @property
    def num_slots(self) -> int: ...

    def context(self, segments: SegmentTable) -> LoraContext | None:
        """Return what the linears need; None where there is no adapter at all."""
        ...


@dataclass(frozen=True)
class _Part:
    """The rows of one sequence: positions ``start : start + count``."""

    sequence: LiveSequence
    start: int
    count: int
    is_prompt: bool

    @property
    def is_sampled(self) -> bool:
        return self.start + self.count == len(self.sequence.tokens)


class PassRunner:
    """Runs the decoder over planned passes, with one pool of keys and values."""

    def __init__(
        self, decoder: Decoder, cache: KvBlocks, *, adapters: SlotContext, graphs: DecodeGraphs | None = None
    ) -> None:
        """Run ``decoder``; passes that only decode go to ``graphs``, where there are any."""
        self._decoder, self._cache, self._adapters, self._graphs = decoder, cache, adapters, graphs

    @torch.no_grad()
    def run(self, plan: StepPlan) -> list[NextToken]:
        """Run a pass and return the next token of each sequence whose last position was in it."""
        # blocks that leave are copied before another sequence's content replaces theirs
        for sequence, blocks in plan.stored:
            sequence.stored = self._cache.store(blocks)
        self._cache.zero(plan.fresh_blocks)
        for sequence in plan.restored:
            assert sequence.stored is not None, "a preempted sequence was stored"
            num_stored = sequence.stored.keys.shape[1] // BLOCK_ROWS
            self._cache.restore(sequence.stored, sequence.blocks[:num_stored])
            sequence.stored = None
        parts = [_Part(sequence, sequence.num_computed, count, is_prompt=True) for sequence, count in plan.prefills]
        parts += [_Part(sequence, sequence.num_computed, 1, is_prompt=False) for sequence in plan.decodes]
        # by slot, those of no adapter last, as every stream is
        parts.sort(key=lambda part: (part.sequence.slot is None, part.sequence.slot or 0, part.sequence.number))
        if self._graphs is not None and not plan.prefills:
            logits_BV = self._replay(self._graphs, parts)
            if logits_BV is not None:
                return self._pick([part.sequence for part in parts], logits_BV)
        return self._pass(parts)

    def _replay(self, graphs: DecodeGraphs, parts: Sequence[_Part]) -> Tensor | None:
        size = rows_of_graph(len(parts))
        if size is None:
            return None
        slots = [-1 if part.sequence.slot is None else part.sequence.slot for part in parts]
        segments = SegmentTable.from_samples(
            [1] * len(parts),
            slots=slots,
            num_slots=self._adapters.num_slots,
            num_rows=size,
            multiplies_slots=True,
        )
        rows = [
            DecodeRow(token=part.sequence.tokens[-1], position=part.start, blocks=part.sequence.blocks, slot=slot)
            for part, slot in zip(parts, slots, strict=True)
        ]
        return graphs.run(rows, self._adapters.context(segments), segments)

    def _pass(self, parts: Sequence[_Part]) -> list[NextToken]:
        device = self._decoder.device
        counts = [part.count for part in parts]
        num_rows = _with_filler(sum(counts))
        tokens, positions = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
        row = 0
        for part in parts:
            stop = part.start + part.count
            tokens[row : row + part.count] = part.sequence.tokens[part.start : stop]
            positions[row : row + part.count] = np.arange(part.start, stop)
            row += part.count
        ends = np.cumsum(counts, dtype=np.int64) - 1
        sampled = [(part, end) for part, end in zip(parts, ends.tolist(), strict=True) if part.is_sampled]
        last = np.array([end for _, end in sampled], dtype=np.int64)
        tokens_T, positions_T, last_B = stage_together([tokens, positions, last], device)
        sequences = [
            NewPositions(blocks=part.sequence.blocks, start=part.start, count=part.count, is_prompt=part.is_prompt)
            for part in parts
        ]
        hidden_TD = self._decoder.forward(
            tokens_T,
            positions_T=positions_T,
            attention=CachedAttention(self._cache, sequences, device=device),
            lora=self._lora(parts, counts=counts, num_rows=num_rows),
        )
        if not sampled:
            return []
        logits_BV = self._logits(hidden_TD.index_select(0, last_B))
        return self._pick([part.sequence for part, _ in sampled], logits_BV)

    def _lora(self, parts: Sequence[_Part], *, counts: Sequence[int], num_rows: int) -> LoraContext | None:
        slots = [-1 if part.sequence.slot is None else part.sequence.slot for part in parts]
        table = SegmentTable.from_samples(
            counts, slots=slots, num_slots=self._adapters.num_slots, num_rows=num_rows, multiplies_slots=True
        )
        return self._adapters.context(table)

    def _pick(self, sequences: Sequence[LiveSequence], logits_BV: Tensor) -> list[NextToken]:
        picked = pick_tokens(
            logits_BV,
            samplings=[sequence.request.sampling for sequence in sequences],
            seeds=[sequence.request.seed for sequence in sequences],
            steps=[sequence.num_generated for sequence in sequences],
        )
        logprobs: dict[int, TokenLogprobs] = {}
        asked = [
            (row, token, sequence.request.num_logprobs)
            for row, (sequence, token) in enumerate(zip(sequences, picked, strict=True))
            if sequence.request.num_logprobs is not None and token is not None
        ]
        if asked:
            rows = torch.tensor([row for row, _, _ in asked], device=logits_BV.device)
            found = token_logprobs(
                logits_BV.index_select(0, rows),
                picked=[token for _, token, _ in asked],
                counts=[count or 0 for _, _, count in asked],
            )
            logprobs = {row: own for (row, _, _), own in zip(asked, found, strict=True)}
        return [
            NextToken(sequence=sequence, token=token, logprobs=logprobs.get(row))
            for row, (sequence, token) in enumerate(zip(sequences, picked, strict=True))
        ]

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        count = len(hidden_BD)
        padded = hidden_BD.new_zeros(_with_filler(count), hidden_BD.shape[1])
        padded[:count] = hidden_BD
        return self._decoder.logits(padded)[:count]


def _with_filler(num_rows: int) -> int:
    return -(-(num_rows + FILLER_ROWS) // FILLER_ROWS) * FILLER_ROWS
