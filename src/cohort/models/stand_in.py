"""A decoder without a model's weights: it launches the kernels that the model's decoder will launch."""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.decoder_layer import TensorRegion
from cohort.models.weights import freeze_weights

__all__ = ["stand_in_decoder"]


def stand_in_decoder(
    config: DecoderConfig, *, dtype: torch.dtype, device: torch.device | str, region: TensorRegion | None = None
) -> Decoder:
    """Return a decoder of zeros, in which weights of one shape share their memory: one layer and the token tables.

    Args:
        region: Of a rank's shard, as the decoder's.
    """
    of_shape: dict[tuple[int, ...], Tensor] = {}

    def zeros(shape: tuple[int, ...]) -> Tensor:
        if shape not in of_shape:
            of_shape[shape] = torch.zeros(shape, dtype=dtype, device=device)
        return of_shape[shape]

    tensors, products = freeze_weights((fused, zeros(fused.shape)) for fused in checkpoint_layout(config))
    return Decoder(config, tensors=tensors, products=products, region=region)
