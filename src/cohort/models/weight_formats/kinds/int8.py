"""Weights in 8-bit integers with a scale for each row, its largest size over 127.

Source: Dettmers et al., "LLM.int8()" (NeurIPS 2022), section 2.1, row-wise absmax. We differ: only the weight is
quantised, and products are those of the dequantised weight, so outliers of activations need no path of their own.

Shapes:  K input width · N output width
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.dequantised_linear import DequantisedLinear
from cohort.models.weight_formats.declaration import FormatDeclaration
from cohort.models.weight_formats.weight_format import Quantisation, StoredTensors, WeightFormat

__all__ = ["DECLARATION", "FORMAT", "Int8Linear"]

DECLARATION = FormatDeclaration(
    name="int8", summary="weights in 8-bit integers, 1 byte each, dequantised for each product"
)

LARGEST = 127.0


class Int8Linear(DequantisedLinear):
    """``y = x (scales * codes)^T (+ bias)``."""

    def __init__(self, codes_NK: Tensor, scales_N: Tensor, bias_N: Tensor | None = None, *, dtype: torch.dtype) -> None:
        """Wrap int8 codes and their float32 scales."""
        super().__init__((codes_NK.shape[0], codes_NK.shape[1]), bias_N, dtype=dtype)
        self._codes_NK, self._scales_N = codes_NK, scales_N

    def write_weight(self, out_NK: Tensor) -> None:
        # in float32, rounded once
        torch.mul(self._codes_NK, self._scales_N[:, None], out=out_NK)

    @property
    def streamed_weights(self) -> tuple[Tensor, ...]:
        return (self._codes_NK, self._scales_N)

    def place_weights(self, weights: Sequence[Tensor]) -> None:
        self._codes_NK, self._scales_N = weights


def _quantise(weight_NK: Tensor) -> StoredTensors:
    weight_NK = weight_NK.float()
    largest_N = weight_NK.abs().amax(dim=1) if weight_NK.shape[1] else weight_NK.new_zeros(weight_NK.shape[0])
    scales_N = largest_N.where(largest_N != 0, LARGEST) / LARGEST
    return {"codes": (weight_NK / scales_N[:, None]).round().to(torch.int8), "scales": scales_N}


def _assemble(pieces: Sequence[StoredTensors], bias_N: Tensor | None, dtype: torch.dtype) -> Int8Linear:
    codes, scales = (
        pieces[0][name] if len(pieces) == 1 else torch.cat([piece[name] for piece in pieces])
        for name in ("codes", "scales")
    )
    return Int8Linear(codes, scales, bias_N, dtype=dtype)


def _disassemble(product: FrozenProduct, rows: Sequence[int]) -> list[StoredTensors]:
    assert isinstance(product, Int8Linear), "products of this format"
    codes_NK, scales_N = product.streamed_weights
    parts = zip(codes_NK.split(list(rows)), scales_N.split(list(rows)), strict=True)
    return [{"codes": codes_nK, "scales": scales_n} for codes_nK, scales_n in parts]


_QUANTISATION = Quantisation(quantise=_quantise, assemble=_assemble, disassemble=_disassemble)
FORMAT = WeightFormat(
    name=DECLARATION.name,
    summary=DECLARATION.summary,
    freeze=_QUANTISATION.freeze,
    weight_bytes=lambda num_out, num_in, _: num_out * (num_in + torch.float32.itemsize),
    compute_dtypes=(torch.float32, torch.bfloat16, torch.float16),
    quantisation=_QUANTISATION,
)
