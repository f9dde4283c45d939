"""Losses of a packed stream token by token, and their sums by sequence: what every objective is made of.

Shapes:  T rows of the stream
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.adapters.modules_to_save.saved_modules import HEAD
from cohort.adapters.modules_to_save.saved_tables import own_head_losses, slots_with
from cohort.data.packing import UNTRAINED, PackedBatch
from cohort.data.tokenised import Sample
from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.kernels.packed_linear import LaunchTables
from cohort.kernels.staging import to_device_unwaited
from cohort.models.attention import AttentionContext, PackedAttention
from cohort.models.decoder import Decoder
from cohort.models.pass_inputs.needed_rows import NeededRows

__all__ = ["rows_with_losses", "sequence_sums", "token_losses", "token_weights"]


def token_losses(
    decoder: Decoder,
    batch: PackedBatch,
    lora: LoraContext | None,
    *,
    attention: AttentionContext | None = None,
    gradient_checkpointing: bool = False,
    needed: NeededRows | None = None,
) -> Tensor:
    """Return the loss of every row in nats, float32 or float64 [T]; 0 where a row predicts nothing.

    Args:
        attention: How the rows attend, by default within the batch's own sequences.
        gradient_checkpointing: As of :meth:`Decoder.forward`.
        needed: What :func:`rows_with_losses` returned, where it was asked before.
    """
    hidden_TD = decoder.forward(
        batch.tokens_T,
        positions_T=batch.positions_T,
        attention=attention or PackedAttention(batch.sequence_offsets),
        lora=lora,
        gradient_checkpointing=gradient_checkpointing,
        needed=needed or rows_with_losses(batch, lora, decoder=decoder),
    )
    owns = () if lora is None else slots_with(lora.saved, HEAD, batch.segments)
    runs = _trained_runs(batch) if owns else []
    with_own = {own.slot for own in owns}
    shared = [rows for slot, rows in runs if slot not in with_own]
    losses_T = linear_cross_entropy(
        hidden_TD,
        head=decoder.head,
        targets_T=batch.targets_T,
        trained_rows_M=torch.cat([batch.trained_rows_M[:0], *shared]) if owns else batch.trained_rows_M,
        logit_cap=decoder.config.logit_cap,
    )
    if not owns:
        return losses_T
    # the sum changes no bit: each term is zero on the rows of the other
    return losses_T + own_head_losses(
        hidden_TD,
        owns=owns,
        targets_T=batch.targets_T,
        runs=[[rows for slot, rows in runs if slot == own.slot] for own in owns],
        logit_cap=decoder.config.logit_cap,
    )


def rows_with_losses(batch: PackedBatch, lora: LoraContext | None, *, decoder: Decoder) -> NeededRows | None:
    """Return the rows whose hidden states the losses read; None where all are computed."""
    if not decoder.leaves_out_rows(lora):
        return None
    if lora is not None and isinstance(lora.tables, LaunchTables):
        counts = [stop - start for start, stop in itertools.pairwise(batch.trained_offsets)]
        return NeededRows.launched(lora, lora.tables, rows_M=batch.trained_rows_M, counts=counts)
    trained = batch.trained_rows_M.numpy()
    bounds = itertools.pairwise(batch.trained_offsets)
    return NeededRows.of(batch.segments, [trained[start:stop] for start, stop in bounds])


def _trained_runs(batch: PackedBatch) -> list[tuple[int, Tensor]]:
    """Return each sample's slot with its rows that have a target, in order."""
    bounds = itertools.pairwise(batch.trained_offsets)
    spans = batch.segments.samples
    return [(span.slot, batch.trained_rows_M[start:stop]) for span, (start, stop) in zip(spans, bounds, strict=True)]


def token_weights(batch: PackedBatch, *, divisors: Mapping[int, int], dtype: torch.dtype) -> Tensor:
    """Return the weight of every row's loss [T] where samples are plain sums: ``1 / divisor`` on a slot's trained rows.

    Args:
        divisors: By slot, of all samples of its optimizer step, all micro-batches together, so that gradients
            accumulate to the mean over the step and not to a mean of means.
    """
    weights = np.zeros(batch.num_rows)
    for slot, divisor in divisors.items():
        weights[batch.segments.rows(slot)] = 1.0 / divisor
    # rounded on the host: the transfer is half as long
    host = torch.from_numpy(weights).to(dtype)
    on_device = to_device_unwaited(host.numpy(), batch.targets_T.device)
    return on_device.masked_fill(batch.targets_T == UNTRAINED, 0.0)


def sequence_sums(losses_T: Tensor, samples: Sequence[Sample]) -> Tensor:
    """Return the sum of each sequence's losses [number of samples], on the losses' device; differentiable.

    Each sequence is summed by itself, so a NaN stays in its sequence and a sum has the same bits in every pack.

    Args:
        losses_T: As :func:`token_losses` returns them; rows behind the last sample are filler.
    """
    lengths = [len(sample.tokens) for sample in samples]
    used_T = losses_T[: sum(lengths)]
    if losses_T.device.type == "cpu":
        return torch.stack([of_sequence.sum() for of_sequence in used_T.split(lengths)])
    counts = to_device_unwaited(np.array(lengths, dtype=np.int64), losses_T.device)
    # unsafe: unchecked lengths; the check would make the host wait for the device in every step
    return torch.segment_reduce(used_T, "sum", lengths=counts, unsafe=True)
