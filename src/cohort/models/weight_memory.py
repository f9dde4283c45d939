"""Where the decoder's tensors lie: each in memory of its own, some with columns to spare for an augmented product."""

from __future__ import annotations

import torch
from torch import Tensor

from cohort.kernels.backend import Backend, describe_backend
from cohort.kernels.packed_linear.choice import spare_columns
from cohort.models.checkpoint_layout import FusedTensor

__all__ = ["empty_tensor", "own_columns"]


def empty_tensor(fused: FusedTensor, *, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return memory for ``fused``. A linear of one part whose product may be augmented on this GPU gets as many further
    columns as that takes (:func:`cohort.kernels.packed_linear.choice.spare_columns`), of any content.

    They are there from the beginning because a CUDA graph may hold a weight's address from its first use on.
    """
    device = torch.device(device)
    further = 0
    if fused.name.startswith("layers.") and len(fused.shape) == 2 and len(fused.pieces) == 1 and dtype.itemsize == 2:
        out_features, in_features = fused.shape
        if device.type == "cuda" and describe_backend(device).backend is Backend.TRITON:
            gpu = torch.cuda.get_device_name(device)
            further = spare_columns(gpu, in_features=in_features, out_features=out_features)
    shape = (*fused.shape[:-1], fused.shape[-1] + further)
    return torch.empty(shape, dtype=dtype, device=device)


def own_columns(tensor: Tensor, fused: FusedTensor) -> Tensor:
    """Return the part of what :func:`empty_tensor` gave that a checkpoint fills."""
    return tensor[..., : fused.shape[-1]]
