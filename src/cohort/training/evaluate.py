"""Validation loss of resident adapters, and of the frozen model, on the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cohort.adapters.bank import AdapterBank
from cohort.core.memory_records import PassKind
from cohort.data.packing import SlotSample, pack
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.training.captured_pass import CapturedPasses
from cohort.training.device_memory import DeviceMemory
from cohort.training.micro_batches import MicroBatches, pass_size
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
    micro_batches: MicroBatches,
    memory: DeviceMemory,
    too_large: Callable[[SlotSample, str], Exception],
    captured: CapturedPasses | None = None,
) -> dict[int, EvaluationLoss]:
    """Return the loss of each of ``slots`` (:data:`BASE_SLOT` for the frozen model) over ``row_ids``.

    All slots share the packed streams. Sums run sample by sample in row order, so that an adapter's loss has the
    same bits whoever is evaluated beside it.

    Args:
        decoder, bank: The model and its adapters.
        slots: Whose losses.
        rows, row_ids: What they are measured on.
        micro_batches: Cuts the rows into passes.
        memory: Watches the passes.
        too_large: The error for a row that does not fit into memory alone.
        captured: Runs the passes it has graphs for.
    """
    order = sorted(slots, key=lambda slot: (slot == BASE_SLOT, slot))
    samples = [rows.sample(row_id) for row_id in row_ids]
    entries = [SlotSample(slot=slot, sample=sample) for slot in order for sample in samples]

    def one_pass(present: Sequence[SlotSample]) -> list[float]:
        replayed = None if captured is None else captured.run(present)
        if replayed is not None:
            return list(sample_loss_sums(replayed.losses_T, replayed.sequence_offsets).tolist())
        batch = pack(present, num_slots=bank.num_slots, device=bank.weights_RD.device)
        lora = bank.context(batch.segments)
        with memory.observe(PassKind.EVALUATE, pass_size(batch, lora, decoder=decoder)):
            losses_T = token_losses(decoder, batch, lora)
        return list(sample_loss_sums(losses_T, batch.sequence_offsets).tolist())

    sums = list(itertools.chain.from_iterable(micro_batches.run(entries, one_pass, too_large=too_large)))
    trained = sum(int(sample.trained.sum()) for sample in samples)
    num_tokens = sum(len(sample.tokens) for sample in samples)
    return {
        slot: EvaluationLoss(
            loss=sum(sums[place * len(samples) : (place + 1) * len(samples)]) / trained, num_tokens=num_tokens
        )
        for place, slot in enumerate(order)
    }
