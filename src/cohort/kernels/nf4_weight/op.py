"""The public ops: a weight to 4-bit NormalFloat, and back into a buffer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.backend import Backend, choose_backend, implementation
from cohort.kernels.nf4_weight import reference

__all__ = ["Nf4Weight", "dequantise", "quantise"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Nf4Weight:
    """A weight [n, K] in 4-bit NormalFloat with double quantisation.

    Attributes:
        codes: uint8 [ceil(n K / 2)], two codes a byte.
        scale_codes: uint8, one for each block of 64 weights.
        nested_scales: float32, one for each 256 of these.
        nested_map: float32 [256], what the scales' codes mean.
        offset: float32, a scalar tensor that is added to every scale.
        shape: (n, K).
    """

    codes: Tensor
    scale_codes: Tensor
    nested_scales: Tensor
    nested_map: Tensor
    offset: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        num_weights = self.shape[0] * self.shape[1]
        num_blocks = -(-num_weights // reference.BLOCK)
        expected = {
            "codes": -(-num_weights // 2),
            "scale_codes": num_blocks,
            "nested_scales": -(-num_blocks // reference.NESTED_BLOCK),
            "nested_map": 256,
            "offset": 1,
        }
        for name, count in expected.items():
            if getattr(self, name).numel() != count:
                raise ShapeError(
                    f"{name} of a weight {self.shape} has {getattr(self, name).numel()} entries, expected {count}: "
                    f"blocks of {reference.BLOCK} weights and of {reference.NESTED_BLOCK} scales"
                )

    @property
    def num_bytes(self) -> int:
        kept = (self.codes, self.scale_codes, self.nested_scales, self.nested_map, self.offset)
        return sum(tensor.nbytes for tensor in kept)


@torch.no_grad()
def quantise(weight_NK: Tensor) -> Nf4Weight:
    """Return a weight [n, K] of any float dtype in 4-bit NormalFloat, on its device."""
    codes, scale_codes, nested_scales, nested_map, offset = reference.quantise(weight_NK)
    return Nf4Weight(
        codes=codes,
        scale_codes=scale_codes,
        nested_scales=nested_scales,
        nested_map=nested_map,
        offset=offset,
        shape=(weight_NK.shape[0], weight_NK.shape[1]),
    )


@torch.no_grad()
def dequantise(weight: Nf4Weight, out_NK: Tensor, *, backend: Backend | None = None) -> None:
    """Write the weight into ``out`` [n, K], rounded once to its dtype.

    Raises:
        ShapeError: ``out`` has another shape or is not contiguous.
    """
    if out_NK.shape != weight.shape or not out_NK.is_contiguous():
        raise ShapeError(f"out is {tuple(out_NK.shape)}, expected {weight.shape} with rows one behind the other")
    implementation("nf4_weight", choose_backend(out_NK, backend=backend)).dequantise(
        weight.codes, weight.scale_codes, weight.nested_scales, weight.nested_map, weight.offset, out=out_NK
    )
