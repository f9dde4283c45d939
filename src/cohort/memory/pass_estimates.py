"""What passes take where nothing was measured: estimates from above."""

from __future__ import annotations

import torch

from cohort.kernels.cross_entropy import logits_bytes
from cohort.models.config import DecoderConfig
from cohort.models.counts import activation_bytes_per_token, recomputed_bytes_per_token
from cohort.scheduling.pass_sizes import MemoryNeeds
from cohort.training.cuda_graphs.recorded_shapes import launching_rows

__all__ = ["LOSS_HEAD_BYTES", "estimate_passes", "estimated_needs"]

# on a GPU: the loss head's logits and their gradient
LOSS_HEAD_BYTES = 5 << 29


def estimated_needs(
    activation_bytes: int, recomputed_bytes: int | None = None, *, launching_tokens: float = 0.0
) -> MemoryNeeds:
    """Return what passes of a GPU take when nothing was measured, from above.

    Args:
        activation_bytes: What one token keeps until its backward pass.
        recomputed_bytes: The same with every layer recomputed; None where that is not known.
        launching_tokens: As of :class:`~cohort.scheduling.pass_sizes.MemoryNeeds`.
    """
    return MemoryNeeds(
        pass_bytes=lambda tokens: activation_bytes * tokens + LOSS_HEAD_BYTES,
        recomputed_bytes=(
            None if recomputed_bytes is None else lambda tokens: recomputed_bytes * tokens + LOSS_HEAD_BYTES
        ),
        graph_bytes=lambda tokens: activation_bytes * tokens,
        launching_tokens=launching_tokens,
    )


def estimate_passes(config: DecoderConfig, *, dtype: torch.dtype, device: torch.device) -> MemoryNeeds:
    """Return an estimate from above of what passes take."""
    activation_bytes = activation_bytes_per_token(config, bytes_per_value=dtype.itemsize)
    recomputed_bytes = recomputed_bytes_per_token(config, bytes_per_value=dtype.itemsize)
    if device.type == "cuda":
        return estimated_needs(activation_bytes, recomputed_bytes, launching_tokens=launching_rows(config))

    def head(tokens: int) -> int:
        is_capped = config.logit_cap is not None
        return 3 * logits_bytes(tokens, vocabulary=config.vocab_size, dtype=dtype, device=device, is_capped=is_capped)

    # twice a GPU's: plain torch keeps what the kernels compute again in the backward pass
    return MemoryNeeds(
        pass_bytes=lambda tokens: 2 * activation_bytes * tokens + head(tokens),
        recomputed_bytes=lambda tokens: 2 * recomputed_bytes * tokens + head(tokens),
    )
