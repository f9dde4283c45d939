"""Validation loss of resident adapters, and of the frozen model, on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cohort.adapters.bank import AdapterBank
from cohort.data.packing import SlotSample, pack, split_micro_batches
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.training.captured_pass import CapturedPasses
from cohort.training.objectives.sft import sample_loss_sums, token_losses

__all__ = ["BASE_SLOT", "EvaluationLoss", "evaluation_losses"]

# the slot of rows that run through the frozen model alone
BASE_SLOT = -1


@dataclass(frozen=True, kw_only=True)
class EvaluationLoss:
    """Outcome of one adapter on the evaluation rows.

    Attributes:
        loss: Mean loss per trained token, in nats.
        num_tokens: Tokens that were read.
    """

    loss: float
    num_tokens: int


@torch.no_grad()
def evaluation_losses(
    decoder: Decoder,
    bank: AdapterBank,
    *,
    slots: Sequence[int],
    rows: TokenisedRows,
    row_ids: Sequence[int],
    token_budget: int,
    captured: CapturedPasses | None = None,
) -> dict[int, EvaluationLoss]:
    """Return the loss of each of ``slots`` (:data:`BASE_SLOT` for the frozen model) over ``row_ids``.

    All slots share the packed streams. Sums run sample by sample in row order, so that an adapter's loss has the
    same bits whoever is evaluated beside it. ``captured`` runs the passes it has graphs for.
    """
    order = sorted(slots, key=lambda slot: (slot == BASE_SLOT, slot))
    samples = [rows.sample(row_id) for row_id in row_ids]
    entries = [SlotSample(slot=slot, sample=sample) for slot in order for sample in samples]
    sums: list[float] = []
    for run in split_micro_batches([len(entry.sample.tokens) for entry in entries], token_budget=token_budget):
        present = [entries[i] for i in run]
        replayed = None if captured is None else captured.run(present)
        if replayed is not None:
            sums += sample_loss_sums(replayed.losses_T, replayed.sequence_offsets).tolist()
            continue
        batch = pack(present, num_slots=bank.num_slots, device=bank.weights_RD.device)
        losses_T = token_losses(decoder, batch, bank.context(batch.segments))
        sums += sample_loss_sums(losses_T, batch.sequence_offsets).tolist()
    trained = sum(int(sample.trained.sum()) for sample in samples)
    num_tokens = sum(len(sample.tokens) for sample in samples)
    return {
        slot: EvaluationLoss(
            loss=sum(sums[place * len(samples) : (place + 1) * len(samples)]) / trained, num_tokens=num_tokens
        )
        for place, slot in enumerate(order)
    }
