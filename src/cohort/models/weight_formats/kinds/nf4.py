"""Weights in 4-bit NormalFloat with double quantisation, as QLoRA keeps them and bitsandbytes' files hold them.

Shapes:  K input width · n output width of one checkpoint tensor · N that of all siblings
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.kernels.nf4_weight import Nf4Weight, dequantise, quantise
from cohort.kernels.nf4_weight.reference import BLOCK, NESTED_BLOCK
from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.dequantised_linear import DequantisedLinear
from cohort.models.weight_formats.declaration import FormatDeclaration
from cohort.models.weight_formats.weight_format import Quantisation, StoredTensors, WeightFormat

__all__ = ["DECLARATION", "FORMAT", "Nf4Linear"]

DECLARATION = FormatDeclaration(
    name="nf4", summary="weights in 4-bit NormalFloat, 0.52 bytes each, dequantised for each product"
)

_NAMES = ("codes", "scale_codes", "nested_scales", "nested_map", "offset")


class Nf4Linear(DequantisedLinear):
    """``y = x W^T (+ bias)`` with W in one 4-bit tensor for each sibling: blocks and means are those of each alone."""

    def __init__(self, weights: Sequence[Nf4Weight], bias_N: Tensor | None = None, *, dtype: torch.dtype) -> None:
        """Wrap the weights of the siblings, whose rows stand one below the other."""
        super().__init__((sum(weight.shape[0] for weight in weights), weights[0].shape[1]), bias_N, dtype=dtype)
        self.weights = tuple(weights)

    def write_weight(self, out_NK: Tensor) -> None:
        row = 0
        for weight in self.weights:
            dequantise(weight, out_NK[row : row + weight.shape[0]])
            row += weight.shape[0]

    @property
    def streamed_weights(self) -> tuple[Tensor, ...]:
        return tuple(getattr(weight, name) for weight in self.weights for name in _NAMES)

    def place_weights(self, weights: Sequence[Tensor]) -> None:
        given = iter(weights)
        self.weights = tuple(
            Nf4Weight(shape=weight.shape, **{name: next(given) for name in _NAMES}) for weight in self.weights
        )


def _quantise(weight_NK: Tensor) -> StoredTensors:
    return _stored(quantise(weight_NK))


def _stored(weight: Nf4Weight) -> StoredTensors:
    # the shape follows from the checkpoint, but a cache file holds tensors alone
    shape = torch.tensor(weight.shape, dtype=torch.int64)
    return {**{name: getattr(weight, name) for name in _NAMES}, "shape": shape}


def _assemble(pieces: Sequence[StoredTensors], bias_N: Tensor | None, dtype: torch.dtype) -> Nf4Linear:
    weights = []
    for piece in pieces:
        rows, width = piece["shape"].tolist()
        weights.append(Nf4Weight(shape=(rows, width), **{name: piece[name] for name in _NAMES}))
    return Nf4Linear(weights, bias_N, dtype=dtype)


def _disassemble(product: FrozenProduct, rows: Sequence[int]) -> list[StoredTensors]:
    assert isinstance(product, Nf4Linear), "products of this format"
    assert [weight.shape[0] for weight in product.weights] == list(rows), "each sibling is kept by itself"
    return [_stored(weight) for weight in product.weights]


def _weight_bytes(num_out: int, num_in: int, _: torch.dtype) -> int:
    num_weights = num_out * num_in
    num_blocks = -(-num_weights // BLOCK)
    num_floats = -(-num_blocks // NESTED_BLOCK) + 256 + 1
    return -(-num_weights // 2) + num_blocks + num_floats * torch.float32.itemsize


_QUANTISATION = Quantisation(quantise=_quantise, assemble=_assemble, disassemble=_disassemble)
FORMAT = WeightFormat(
    name=DECLARATION.name,
    summary=DECLARATION.summary,
    freeze=_QUANTISATION.freeze,
    weight_bytes=_weight_bytes,
    compute_dtypes=(torch.float32, torch.bfloat16, torch.float16),
    quantisation=_QUANTISATION,
)
