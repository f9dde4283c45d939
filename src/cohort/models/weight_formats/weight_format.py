"""What a format of frozen weights tells the loader, the decoder and everyone who counts bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.kernels.packed_linear import FrozenProduct

__all__ = ["WeightFormat"]


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """How the weights of the layers' linears are kept; the token table, the head and the norms stay as they are.

    Attributes:
        name: What :func:`~cohort.models.weights.load_decoder` is given.
        freeze: From a weight [N, K] in the dtype the model computes in, and a bias [N] or None, to the products over
            it. Sibling linears are fused by rows: N is that of all siblings, whose rows stand one below the other. The
            function may keep the tensors themselves.
        weight_bytes: Bytes that ``freeze`` keeps of a weight, by (N, K) and that dtype; the bias is not counted.
        compute_dtypes: What a model in this format can compute in.
        stored_dtypes: Dtypes of checkpoint tensors that can be read, as safetensors spells them.
    """

    name: str
    freeze: Callable[[Tensor, Tensor | None], FrozenProduct]
    weight_bytes: Callable[[int, int, torch.dtype], int]
    compute_dtypes: tuple[torch.dtype, ...]
    stored_dtypes: tuple[str, ...] = ("F64", "F32", "BF16", "F16")

    def tensor_bytes(self, shape: tuple[int, ...], dtype: torch.dtype, *, is_linear: bool) -> int:
        """Return the bytes of one tensor of the decoder: a linear's weight, or any other."""
        if is_linear:
            return self.weight_bytes(shape[0], shape[1], dtype)
        return math.prod(shape) * dtype.itemsize
