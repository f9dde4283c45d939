"""What a reference model gives each answer: the frozen base model, or an adapter on it, in packed passes.

The passes and their sums are those of an evaluation, so a trial that is still the reference has its bits on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import PassKind
from cohort.core.numerics import Numerics
from cohort.data.packing import SlotSample
from cohort.data.tokenised import Sample
from cohort.models.decoder import Decoder
from cohort.training.device_memory import DeviceMemory
from cohort.training.evaluation_loss import BASE_SLOT
from cohort.training.exact_numerics import set_numerics
from cohort.training.group_terms import answer_losses
from cohort.training.micro_batches import MicroBatches
from cohort.training.objectives.objective import Groups, Objective
from cohort.training.passes import Passes
from cohort.training.reference.reference_adapter import ReferenceAdapter

__all__ = ["ANSWER_LOSS", "AnswerLoss", "answer_log_probs"]


@dataclass(frozen=True, kw_only=True)
class AnswerLoss(Objective):
    """A row's term is ``-log p`` of its trained answer: for a model that only an evaluation reaches."""

    def terms(self, groups: Groups) -> Tensor:
        return groups.answer_losses_GS[:, 0]


ANSWER_LOSS = AnswerLoss()


@torch.no_grad()
def answer_log_probs(
    decoder: Decoder,
    samples: Sequence[Sample],
    *,
    token_budget: int,
    too_large: Callable[[SlotSample, str], Exception],
    adapter: ReferenceAdapter | None = None,
    memory_limit_bytes: int | None = None,
    numerics: Numerics = Numerics.FAST,
) -> list[float]:
    """Return ``log p`` of each sample's trained answer, in nats.

    Args:
        token_budget: Most tokens of a pass; a shortage of memory lowers it.
        too_large: Makes the error for a row that does not fit into memory alone.
        adapter: None for the frozen model alone.
        memory_limit_bytes: On a CPU, the most that model and passes may take together.
        numerics: As of the trials that are compared; the decoder keeps it.
    """
    device, slot = decoder.device, BASE_SLOT
    # a pass lays out slots even where only the frozen model reads
    layout = AdapterLayout({}) if adapter is None else adapter.layout
    r = 1 if adapter is None else adapter.spec.num_rows
    bank = AdapterBank(layout, num_slots=1, num_rank_rows=r, device=device, compute_dtype=decoder.dtype)
    set_numerics(numerics, decoder=decoder, bank=bank)
    if adapter is not None:
        slot = bank.insert(adapter.spec, AdapterState(weights=adapter.weights_rD))
    memory = DeviceMemory(device, limit_bytes=memory_limit_bytes, base_bytes=decoder.num_bytes + bank.num_bytes)
    passes = Passes(decoder, bank, memory=memory, captured=None)
    batches = MicroBatches(PassKind.EVALUATE, token_budget=token_budget, memory=memory, reliefs=[])

    def one_pass(part: Sequence[SlotSample]) -> list[float]:
        losses: list[float] = answer_losses(passes.measure(part), [entry.sample for entry in part]).tolist()
        return losses

    entries = [SlotSample(slot=slot, sample=sample) for sample in samples]
    return [-loss for part in batches.run(entries, one_pass, too_large=too_large) for loss in part]
