"""Trains one adapter to answer like another: the mean over trained tokens of KL(teacher || student).

Shapes:  T rows of a stream · M trained rows · D hidden width · V vocabulary
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank, aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.order import SampleOrder
from cohort.data.packing import SlotSample, pack
from cohort.data.tokenised import Sample, TokenisedRows
from cohort.kernels.adamw import SlotUpdate, adamw_step
from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder
from cohort.training.backward_start import seeded
from cohort.training.optimizers import DEFAULT_OPTIMIZER

__all__ = ["Distilled", "distill"]


# rows on which the student is compared with the teacher before and after
_MEASURED = 32


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """The student after its steps.

    Attributes:
        weights_rD: Its rank rows; those before the first step where the steps brought it no nearer.
        divergences: The mean KL of each step's tokens before the step, in nats.
        before, after: The mean KL on the same rows before the first step and after the last, in nats a token.
        num_measured: These rows.
    """

    weights_rD: Tensor
    divergences: tuple[float, ...]
    before: float
    after: float
    num_measured: int

    @property
    def is_nearer(self) -> bool:
        """Whether the steps brought the student nearer to its teacher."""
        return self.after < self.before


def distill(
    decoder: Decoder,
    layout: AdapterLayout,
    *,
    teacher: tuple[AdapterSpec, Tensor],
    student: tuple[AdapterSpec, Tensor],
    rows: TokenisedRows,
    num_steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int = 0,
    max_grad_norm: float = 1.0,
) -> Distilled:
    """Train ``student`` for ``num_steps`` steps of AdamW, the rate falling to zero as half a cosine.

    Args:
        teacher, student: Hyperparameters and rank rows; the student keeps its blocks.
        rows: Their trained tokens are compared.
    """
    bank = AdapterBank(
        layout,
        num_slots=2,
        num_rank_rows=aligned_rank(teacher[0].r) + aligned_rank(student[0].r),
        device=decoder.device,
        compute_dtype=decoder.dtype,
        moments=DEFAULT_OPTIMIZER.moments,
    )
    frozen, trained = (bank.insert(spec, AdapterState(weights=weights)) for spec, weights in (teacher, student))
    order = SampleOrder(len(rows), seed=seed, batch_size=batch_size)
    measured = [rows.sample(index) for index in random.Random(seed).sample(range(len(rows)), min(_MEASURED, len(rows)))]
    before = _divergence(decoder, bank, measured, teacher=frozen, student=trained, batch_size=batch_size)
    divergences = []
    for step in range(num_steps):
        samples = [rows.sample(index) for index in order.batch(step)]
        divergences.append(_backward(decoder, bank, samples, teacher=frozen, student=trained))
        bank.before_update((trained,))
        adamw_step(
            bank.weights_RD,
            grads_RD=bank.grads_RD,
            exp_avg_RD=bank.moments_RD["exp_avg"],
            exp_avg_sq_RD=bank.moments_RD["exp_avg_sq"],
            slots=[
                SlotUpdate(
                    row_start=bank.rank_rows(trained).start,
                    rank=student[0].r,
                    learning_rate=learning_rate * (1 + math.cos(math.pi * step / num_steps)) / 2,
                    step=step + 1,
                    max_grad_norm=max_grad_norm,
                )
            ],
            compute_RD=None if bank.compute_RD is bank.weights_RD else bank.compute_RD,
            zero_grads=not bank.writes_gradients,
        )
        bank.after_update((trained,))
    found = Distilled(
        weights_rD=bank.read(trained).weights,
        divergences=tuple(divergences),
        before=before,
        after=_divergence(decoder, bank, measured, teacher=frozen, student=trained, batch_size=batch_size),
        num_measured=len(measured),
    )
    return found if found.is_nearer else replace(found, weights_rD=student[1].clone())


@torch.no_grad()
def _divergence(
    decoder: Decoder, bank: AdapterBank, samples: Sequence[Sample], *, teacher: int, student: int, batch_size: int
) -> float:
    """Return the mean KL over the trained tokens of ``samples``."""
    total, count = 0.0, 0
    for start in range(0, len(samples), batch_size):
        part = samples[start : start + batch_size]
        (expected_TD, rows_M), (found_TD, _) = (_hidden(decoder, bank, part, slot=slot) for slot in (teacher, student))
        wanted_MV, found_MV = (
            _wide(decoder.logits(hidden_TD[rows_M])).log_softmax(dim=1) for hidden_TD in (expected_TD, found_TD)
        )
        total += float((wanted_MV.exp() * (wanted_MV - found_MV)).sum())
        count += len(rows_M)
    return total / max(1, count)


def _backward(decoder: Decoder, bank: AdapterBank, samples: Sequence[Sample], *, teacher: int, student: int) -> float:
    """Put the student's gradients into the bank and return the mean KL."""
    with torch.no_grad():
        expected_TD, rows_M = _hidden(decoder, bank, samples, slot=teacher)
        wanted_MV = _wide(decoder.logits(expected_TD[rows_M])).log_softmax(dim=1)
    hidden_TD, _ = _hidden(decoder, bank, samples, slot=student, trains=True)
    with torch.no_grad():
        logits_MV = _wide(decoder.logits(hidden_TD.detach()[rows_M]))
        found_MV = logits_MV.log_softmax(dim=1)
        divergence = (wanted_MV.exp() * (wanted_MV - found_MV)).sum(dim=1).mean()
        # d KL / d logits, through a cap where the model has one
        d_MV = (found_MV.exp() - wanted_MV.exp()) / len(rows_M)
        cap = decoder.config.logit_cap
        d_MV = d_MV if cap is None else d_MV * (1 - (logits_MV / cap).square())
        d_TD = torch.zeros_like(hidden_TD)
        d_TD[rows_M] = decoder.head.grad_input(d_MV.to(decoder.dtype))
    seeded(hidden_TD, d_TD).backward()
    return float(divergence)


def _wide(logits_MV: Tensor) -> Tensor:
    """Return logits in float32, or in float64 where the model is."""
    return logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))


def _hidden(
    decoder: Decoder,
    bank: AdapterBank,
    samples: Sequence[Sample],
    *,
    slot: int,
    trains: bool = False,
) -> tuple[Tensor, Tensor]:
    entries = [SlotSample(slot=slot, sample=sample) for sample in samples]
    batch = pack(entries, num_slots=bank.num_slots, device=decoder.device)
    hidden_TD = decoder.forward(
        batch.tokens_T,
        positions_T=batch.positions_T,
        attention=PackedAttention(batch.sequence_offsets),
        lora=bank.context(batch.segments, fresh_slots=(slot,) if trains else ()),
    )
    return hidden_TD, batch.trained_rows_M
