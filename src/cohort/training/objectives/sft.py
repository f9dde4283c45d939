"""Supervised fine-tuning: mean cross-entropy over a slot's own trained tokens of its own optimizer step.

Shapes:  T rows of the stream
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.data.packing import UNTRAINED, PackedBatch
from cohort.kernels.cross_entropy import linear_cross_entropy
from cohort.kernels.staging import to_device_unwaited
from cohort.models.attention import AttentionContext, PackedAttention
from cohort.models.decoder import Decoder

__all__ = ["sample_loss_sums", "token_losses", "token_weights"]


def token_losses(
    decoder: Decoder,
    batch: PackedBatch,
    lora: LoraContext | None,
    *,
    attention: AttentionContext | None = None,
    gradient_checkpointing: bool = False,
) -> Tensor:
    """Return the loss of every row in nats, float32 or float64 [T]; 0 where a row predicts nothing.

    ``attention`` says how the rows attend, by default within the batch's own sequences; for ``gradient_checkpointing``
    see :meth:`Decoder.forward`.
    """
    hidden_TD = decoder.forward(
        batch.tokens_T,
        positions_T=batch.positions_T,
        attention=attention or PackedAttention(batch.sequence_offsets),
        lora=lora,
        gradient_checkpointing=gradient_checkpointing,
    )
    return linear_cross_entropy(
        hidden_TD, head=decoder.head, targets_T=batch.targets_T, trained_rows_M=batch.trained_rows_M
    )


def token_weights(batch: PackedBatch, *, trained_tokens: Mapping[int, int], dtype: torch.dtype) -> Tensor:
    """Return the weight of every row's loss [T]: ``1 / n_z`` on the trained rows of slot z.

    Args:
        batch: The stream.
        trained_tokens: n_z by slot: trained tokens in all of the slot's samples of this optimizer step, all
            micro-batches together, so that gradients accumulate to the mean over the step and not to a mean of means.
        dtype: Of the losses.
    """
    weights = torch.zeros(batch.num_rows, dtype=torch.float64)
    for slot, count in trained_tokens.items():
        weights[batch.segments.rows(slot)] = 1.0 / count
    weights = weights.to(dtype)
    device = batch.targets_T.device
    if device.type == "cuda":
        # pinned: a transfer from pageable memory waits for everything launched before it
        weights = weights.pin_memory()
    return weights.to(device, non_blocking=True).masked_fill(batch.targets_T == UNTRAINED, 0.0)


def sample_loss_sums(losses_T: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return the sum of each sample's losses [number of samples], on the losses' device; ``offsets`` bound the samples.

    Each sample is summed by itself, so a NaN stays in its sample and a sample's sum has the same bits in every pack.
    """
    if losses_T.device.type == "cpu":
        return torch.stack([losses_T[start:stop].sum() for start, stop in itertools.pairwise(offsets)])
    counts = np.array([stop - start for start, stop in itertools.pairwise(offsets)], dtype=np.int64)
    lengths = to_device_unwaited(counts, losses_T.device)
    return torch.segment_reduce(losses_T[: offsets[-1]], "sum", lengths=lengths)
