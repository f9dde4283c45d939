"""Computes recorded passes: the decoder over the new positions of many sequences, with one pool of keys and values.

Shapes:  T rows of the stream · B sequences whose next token is picked · D hidden width · V vocabulary
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.adapters.modules_to_save.saved_tables import own_logits
from cohort.data.packing import LEAST_ROWS, stream_rows
from cohort.kernels.segments import SegmentTable
from cohort.kernels.staging import stage_together
from cohort.models.attention import AttentionContext
from cohort.models.config import DecoderConfig
from cohort.models.decode_sizes import rows_of_graph
from cohort.models.decoder import Decoder
from cohort.serving.cached_attention import CachedAttention, NewPositions
from cohort.serving.decode_graphs import DecodeGraphs
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, StoredBlocks
from cohort.serving.pass_record import PassRecord, SequencePart
from cohort.serving.sampler import Scores

__all__ = ["LoraFor", "PassComputer", "PassModel", "ScoresOf", "SlotContext", "padded_logits"]

LoraFor = Callable[[SegmentTable], LoraContext]
"""What the linears need for a stream laid out by a table: ``AdapterBank.context``."""

ScoresOf = Callable[[Tensor], Scores]
"""Gives the scores of final hidden states [B, D]."""

# On a GPU passes have a multiple of 16 rows, at least 16 of them of no sequence.
FILLER_ROWS = 16
# On a CPU, where any number will do: the least at which MKL keeps bits with AVX-512, so that products fill up nothing.
# All products of 44 million parameters take 10.5 ms with one row, 13.9 with two, 16.0 with four.
FEW_ROWS_MULTIPLE = 2


class SlotContext(Protocol):
    """The adapters of a pass."""

    @property
    def num_slots(self) -> int: ...

    def context(self, segments: SegmentTable) -> LoraContext | None:
        """Return what the linears need; None where there is no adapter at all."""
        ...


class PassModel(Protocol):
    """What passes ask of a model: of a decoder, or of a stage of one."""

    @property
    def config(self) -> DecoderConfig: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def part(self) -> Sequence[int]:
        """The layers whose keys and values it has."""
        ...

    @property
    def takes_any_rows(self) -> bool:
        """Whether a row has its own bits on a CPU in a stream of any number of rows."""
        ...

    def forward(
        self, tokens_T: Tensor, *, positions_T: Tensor, attention: AttentionContext, lora: LoraContext | None
    ) -> Tensor: ...
    def logits(self, hidden_TD: Tensor) -> Tensor: ...


class PassComputer:
    """Computes passes on one device; of a divided model each rank has one, and all compute the same records.

    Attributes:
        graphs: Where passes that only decode run, if they can be recorded.
        num_cache_bytes: Of keys and values.
    """

    def __init__(
        self,
        decoder: PassModel,
        *,
        adapters: SlotContext,
        num_blocks: int,
        max_model_len: int,
        records_graphs: bool = False,
        scores_of: ScoresOf | None = None,
        as_trained: bool = False,
    ) -> None:
        """Allocate ``num_blocks`` blocks of keys and values, and one of zeros.

        Args:
            max_model_len: Most tokens of a sequence.
            records_graphs: Run passes that only decode as CUDA graphs, where the model has the kernels.
            scores_of: Gives the scores of final hidden states [B, D]; None: the model's logits.
            as_trained: As of :class:`~cohort.serving.engine.ServingEngine`.
        """
        self._scores_of, self._as_trained = scores_of, as_trained
        self._decoder, self._adapters = decoder, adapters
        self._cache = KvBlocks(
            decoder.config, num_blocks=num_blocks, dtype=decoder.dtype, device=decoder.device, layers=decoder.part
        )
        self.num_cache_bytes = self._cache.keys.nbytes + self._cache.values.nbytes
        self.graphs: DecodeGraphs | None = None
        if isinstance(decoder, Decoder):
            decoder.arrange_for_few_rows()
        if records_graphs and isinstance(decoder, Decoder) and DecodeGraphs.suit(decoder):
            self.graphs = DecodeGraphs(decoder, self._cache, max_model_len=max_model_len)
        # keys and values of preempted sequences, by number
        self._stored: dict[int, StoredBlocks] = {}
        # of the last pass that only decoded: the next one most often has the same sequences
        self._decoded: tuple[tuple[int, ...], SegmentTable] | None = None
        # of the last pass that was not recorded: slots, counts, rows and slots there are, and their table
        self._laid_out: tuple[tuple[list[int], list[int], int, int], SegmentTable] | None = None

    @torch.no_grad()
    def compute(self, record: PassRecord) -> Scores | None:
        """Return the scores of the parts whose last position is sampled, in order; None where none is.

        They are valid until the next pass.
        """
        self._prepare(record)
        parts = record.parts
        if self.graphs is not None and record.only_decodes:
            scores = self._replay(self.graphs, parts)
            if scores is not None:
                return scores
        return self._pass(parts)

    def _prepare(self, record: PassRecord) -> None:
        # blocks that leave are copied before another sequence's content replaces theirs
        for number, blocks in record.stored:
            self._stored[number] = self._cache.store(blocks)
        for number in record.forgotten:
            self._stored.pop(number, None)
        self._cache.zero(record.fresh_blocks)
        for number, blocks in record.restored:
            stored = self._stored.pop(number)
            num_stored = stored.keys.shape[1] // BLOCK_ROWS
            self._cache.restore(stored, blocks[:num_stored])

    def _replay(self, graphs: DecodeGraphs, parts: Sequence[SequencePart]) -> Scores | None:
        size = rows_of_graph(len(parts))
        if size is None:
            return None
        slots = tuple(-1 if part.slot is None else part.slot for part in parts)
        if self._decoded is None or self._decoded[0] != slots:
            # a pass without gradients asks for the rows of a slot, not of a sequence
            runs = [(slot, sum(1 for _ in own)) for slot, own in itertools.groupby(slots)]
            table = SegmentTable.from_samples(
                [count for _, count in runs],
                slots=[slot for slot, _ in runs],
                num_slots=self._adapters.num_slots,
                num_rows=size,
                multiplies_slots=True,
            )
            self._decoded = slots, table
        segments = self._decoded[1]
        return graphs.run(parts, self._adapters.context(segments), segments)

    def _pass(self, parts: Sequence[SequencePart]) -> Scores | None:
        device = self._decoder.device
        counts = [part.count for part in parts]
        num_rows = _rows_of(sum(counts), self._decoder)
        tokens, positions = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
        row = 0
        for part in parts:
            tokens[row : row + part.count] = part.tokens
            positions[row : row + part.count] = np.arange(part.start, part.start + part.count)
            row += part.count
        ends = np.cumsum(counts, dtype=np.int64) - 1
        last = np.array([end for part, end in zip(parts, ends.tolist(), strict=True) if part.is_sampled], np.int64)
        tokens_T, positions_T, last_B = stage_together([tokens, positions, last], device)
        sequences = [
            NewPositions(blocks=part.blocks, start=part.start, count=part.count, is_prompt=part.is_prompt)
            for part in parts
        ]
        lora = self._lora(parts, counts=counts, num_rows=num_rows)
        hidden_TD = self._decoder.forward(
            tokens_T,
            positions_T=positions_T,
            attention=CachedAttention(self._cache, sequences, device=device, whole_tiles=self._as_trained),
            lora=lora,
        )
        if not len(last):
            return None
        hidden_BD = hidden_TD.index_select(0, last_B)
        if self._scores_of is not None:
            return self._scores_of(hidden_BD)
        logits_BV = padded_logits(self._decoder, hidden_BD)
        if lora is not None and lora.saved:
            slots = [-1 if part.slot is None else part.slot for part in parts if part.is_sampled]
            cap = self._decoder.config.logit_cap
            own_logits(logits_BV, hidden_BD, saved=lora.saved, slots=slots, logit_cap=cap)
        return Scores.of(logits_BV)

    def _lora(self, parts: Sequence[SequencePart], *, counts: Sequence[int], num_rows: int) -> LoraContext | None:
        slots = [-1 if part.slot is None else part.slot for part in parts]
        layout = (slots, [*counts], num_rows, self._adapters.num_slots)
        if self._laid_out is None or self._laid_out[0] != layout:
            table = SegmentTable.from_samples(
                counts,
                slots=slots,
                num_slots=self._adapters.num_slots,
                num_rows=num_rows,
                multiplies_slots=not self._as_trained,
            )
            self._laid_out = layout, table
        return self._adapters.context(self._laid_out[1])


def padded_logits(decoder: PassModel, hidden_BD: Tensor) -> Tensor:
    """Return the logits [B, V] of final hidden states, each with its own bits on a CPU."""
    if decoder.takes_any_rows:
        return decoder.logits(hidden_BD)
    count = len(hidden_BD)
    padded = hidden_BD.new_zeros(_rows_of(count, decoder), hidden_BD.shape[1])
    padded[:count] = hidden_BD
    return decoder.logits(padded)[:count]


def _rows_of(num_used: int, decoder: PassModel) -> int:
    """Return the rows of a stream, given those that sequences use."""
    if decoder.takes_any_rows and num_used <= LEAST_ROWS:
        return -(-num_used // FEW_ROWS_MULTIPLE) * FEW_ROWS_MULTIPLE
    if decoder.device.type == "cpu":
        # where any number will do as well: so that no product fills rows up by itself
        return stream_rows(num_used, on_gpu=False)
    return -(-(num_used + FILLER_ROWS) // FILLER_ROWS) * FILLER_ROWS
