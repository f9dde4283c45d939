"""Computes recorded passes of a model of transformers: sequence by sequence, with the cache that the model keeps.

Shapes:  L rows of one sequence · B sequences whose next token is picked · D hidden width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.adapters.modules_to_save.saved_tables import own_logits
from cohort.kernels.segments import SegmentTable
from cohort.models.bridge.backbone import BridgedCache, BridgedDecoder
from cohort.serving.pass_computer import ScoresOf, SlotContext, padded_logits
from cohort.serving.pass_record import PassRecord, SequencePart
from cohort.serving.sampler import Scores

__all__ = ["BridgedPassComputer"]


@dataclass(eq=False)
class _Kept:
    """What is kept of a live sequence.

    Attributes:
        cache: The model's; None before its prompt is whole.
        waiting: Tokens of its prompt that come in several passes: some recurrent layers take a prompt only whole.
        blocks: Its blocks, which say when it has ended: another sequence then owns one of them.
    """

    cache: BridgedCache = field(default_factory=BridgedCache)
    waiting: list[int] = field(default_factory=list)
    blocks: frozenset[int] = frozenset()


class BridgedPassComputer:
    """Computes passes of a bridged model on one device, as :class:`~cohort.serving.pass_computer.PassComputer` does.

    Attributes:
        num_cache_bytes: 0: the model's own caches grow with the sequences.
    """

    num_cache_bytes = 0
    graphs = None

    def __init__(self, decoder: BridgedDecoder, *, adapters: SlotContext, scores_of: ScoresOf | None = None) -> None:
        """Compute with ``decoder``; ``scores_of`` is that of :class:`~cohort.serving.engine.ServingEngine`."""
        self._decoder, self._adapters, self._scores_of = decoder, adapters, scores_of
        self._live: dict[int, _Kept] = {}
        self._preempted: dict[int, _Kept] = {}

    @torch.no_grad()
    def compute(self, record: PassRecord) -> Scores | None:
        """Return the scores of the parts whose last position is sampled, in order; None where none is."""
        self._prepare(record)
        last = [self._last_hidden(part) for part in record.parts]
        sampled = [hidden_D for hidden_D, part in zip(last, record.parts, strict=True) if part.is_sampled]
        found = [hidden_D for hidden_D in sampled if hidden_D is not None]
        if not found:
            return None
        hidden_BD = torch.stack(found)
        if self._scores_of is not None:
            return self._scores_of(hidden_BD)
        logits_BV = padded_logits(self._decoder, hidden_BD)
        self._write_own_logits(logits_BV, hidden_BD, record)
        return Scores.of(logits_BV)

    def _write_own_logits(self, logits_BV: Tensor, hidden_BD: Tensor, record: PassRecord) -> None:
        """Write the logits of rows whose adapter has a head of its own."""
        slots = [-1 if part.slot is None else part.slot for part in record.parts if part.is_sampled]
        table = SegmentTable.from_samples(
            [1] * len(slots),
            slots=slots,
            num_slots=self._adapters.num_slots,
            num_rows=len(slots),
            multiplies_slots=True,
        )
        lora = self._adapters.context(table)
        if lora is not None and lora.saved:
            cap = self._decoder.config.logit_cap
            own_logits(logits_BV, hidden_BD, saved=lora.saved, slots=slots, logit_cap=cap)

    def _prepare(self, record: PassRecord) -> None:
        for number, _ in record.stored:
            self._preempted[number] = self._live.pop(number, _Kept())
        for number in record.forgotten:
            self._preempted.pop(number, None)
        fresh = frozenset(record.fresh_blocks)
        for number in [number for number, kept in self._live.items() if kept.blocks & fresh]:
            del self._live[number]
        for number, blocks in record.restored:
            kept = self._live[number] = self._preempted.pop(number, _Kept())
            # those it had are others' by now, and a prompt that waits for room names its own in a later pass only
            kept.blocks = frozenset(blocks)

    def _last_hidden(self, part: SequencePart) -> Tensor | None:
        """Return the hidden state [D] of a part's last position; None while its prompt is not whole."""
        kept = self._live.setdefault(part.number, _Kept())
        kept.blocks = frozenset(part.blocks)
        kept.waiting += part.tokens
        if not part.is_sampled:
            return None
        tokens_L = torch.tensor(kept.waiting, device=self._decoder.device)
        kept.waiting = []
        return self._decoder.continued(tokens_L, kept.cache, lora_for=lambda count: self._lora(part.slot, count))[-1]

    def _lora(self, slot: int | None, count: int) -> LoraContext | None:
        slots: Sequence[int] = [-1 if slot is None else slot]
        table = SegmentTable.from_samples([count], slots=slots, num_slots=self._adapters.num_slots, num_rows=count)
        return self._adapters.context(table)
