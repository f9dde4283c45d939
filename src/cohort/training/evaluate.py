"""Validation loss of resident adapters, and of the frozen model, on the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cohort.adapters.bank import AdapterBank
from cohort.core.memory_records import PassKind
from cohort.data.packing import SlotSample, pack
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.training.captured_pass import CapturedPasses
from cohort.training.device_memory import DeviceMemory
from cohort.training.micro_batches import MicroBatches, pass_size
from cohort.training.objectives.objective import Objective
from cohort.training.token_losses import token_losses

__all__ = ["BASE_SLOT", "EvaluationLoss", "evaluation_losses"]

# the slot of rows that run through the frozen model alone
BASE_SLOT = -1


@dataclass(frozen=True, kw_only=True)
class EvaluationLoss:
    """Outcome of one adapter on the evaluation rows.

    Attributes:
        loss: The objective's; of sft the mean loss per trained token, in nats.
        num_tokens: Tokens that were read.
        metrics: Means over the groups of what else the objective measures, by name.
    """

    loss: float
    num_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@torch.no_grad()
def evaluation_losses(
    decoder: Decoder,
    bank: AdapterBank,
    *,
    objective: Objective,
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
        objective: What is measured.
        slots: Whose losses.
        rows, row_ids: What they are measured on; where the objective groups rows, the ids are those of groups.
        micro_batches: Cuts the rows into passes.
        memory: Watches the passes.
        too_large: The error for a row that does not fit into memory alone.
        captured: Runs the passes it has graphs for.
    """
    order = sorted(slots, key=lambda slot: (slot == BASE_SLOT, slot))
    size = objective.group_size
    samples = [rows.sample(size * row_id + place) for row_id in row_ids for place in range(size)]
    entries = [SlotSample(slot=slot, sample=sample) for slot in order for sample in samples]

    def one_pass(present: Sequence[SlotSample]) -> list[dict[str, float]]:
        losses_T = None if captured is None else captured.run(present)
        if losses_T is None:
            batch = pack(present, num_slots=bank.num_slots, device=bank.weights_RD.device)
            lora = bank.context(batch.segments)
            with memory.observe(PassKind.EVALUATE, pass_size(batch, lora, decoder=decoder)):
                losses_T = token_losses(decoder, batch, lora)
        own = [entry.sample for entry in present]
        measured = {"loss": objective.terms(losses_T, own), **objective.metrics(losses_T, own)}
        groups = zip(*(values_G.tolist() for values_G in measured.values()), strict=True)
        return [dict(zip(measured, group, strict=True)) for group in groups]

    found = list(itertools.chain.from_iterable(micro_batches.run(entries, one_pass, too_large=too_large)))
    divisor, num_tokens = objective.divisor(samples), sum(len(sample.tokens) for sample in samples)
    outcomes = {}
    for place, slot in enumerate(order):
        groups = found[place * len(row_ids) : (place + 1) * len(row_ids)]
        sums = {name: sum(group[name] for group in groups) for name in groups[0]}
        loss = sums.pop("loss") / divisor
        metrics = {name: total / len(groups) for name, total in sums.items()}
        outcomes[slot] = EvaluationLoss(loss=loss, num_tokens=num_tokens, metrics=metrics)
    return outcomes
