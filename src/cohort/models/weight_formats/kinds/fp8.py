"""Weights in 8-bit floats (e4m3) with a scale for each row, multiplied by rows that are rounded as they arrive.

One set of codes serves the forward product and the gradient: docs/decisions/ says why there are no other scales for
the gradient.

Shapes:  T rows · K input width · N output width
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.kernels.fp8_product import (
    Fp8Rows,
    empty_rows,
    fp8_forward,
    fp8_grad_input,
    fp8_problem,
    has_product,
    quantise_rows,
    transposed,
)
from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.weight_formats.declaration import FormatDeclaration
from cohort.models.weight_formats.weight_format import Quantisation, StoredTensors, WeightFormat

__all__ = ["DECLARATION", "FORMAT", "Fp8Linear", "KEPT_SHARE"]

DECLARATION = FormatDeclaration(
    name="fp8", summary="e4m3 weights and activations, 1 byte a weight (2 with the copy for gradients)"
)

# The gradient's product reads the codes transposed. A transposed copy takes the weights' bytes a second time; without
# it every pass transposes each weight, which changes no bit and costs as much as 100 to 200 tokens of the pass do. The
# copy is kept where both take less than this share of a GPU: an 8B model on 80 GB has it, a 70B one on 141 GB not.
KEPT_SHARE = 0.5


class Fp8Linear:
    """``y = q(x) (scales * codes)^T (+ bias)``, where q rounds each row of x to e4m3.

    Satisfies ``CodedProduct`` and ``CodedGradient`` of :mod:`cohort.kernels.packed_linear.frozen_product`. The LoRA
    term is added by its own products, from x as it was: only the frozen product sees rounded rows.

    Attributes:
        is_exact: Whether a row's bits must not follow from the rows around it, on a GPU, too.
    """

    def __init__(self, codes_NK: Tensor, scales_N: Tensor, bias_N: Tensor | None = None, *, dtype: torch.dtype) -> None:
        """Wrap codes in e4m3 and their scales (float32); ``dtype`` is that of inputs and outputs."""
        self._codes_NK, self._scales_N, self._bias_N, self._dtype = codes_NK, scales_N, bias_N, dtype
        self._codes_KN: Tensor | None = None
        self._ones_K = _ones(codes_NK.shape[1], codes_NK.device)
        self.is_exact = False

    @property
    def in_features(self) -> int:
        return self._codes_NK.shape[1]

    @property
    def out_features(self) -> int:
        return self._codes_NK.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._codes_NK.device

    @property
    def num_bytes(self) -> int:
        """Bytes of codes, scales, bias and the transposed copy, where there is one."""
        kept = (*self.streamed_weights, self._scales_N, self._bias_N)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    @property
    def streamed_weights(self) -> tuple[Tensor, ...]:
        """The tensors that grow with N K: the codes, and where it is kept their transposed copy."""
        return (self._codes_NK,) if self._codes_KN is None else (self._codes_NK, self._codes_KN)

    def place_weights(self, weights: Sequence[Tensor]) -> None:
        """Read these tensors from now on; they are like :attr:`streamed_weights`."""
        self._codes_NK, self._codes_KN = weights[0], weights[1] if len(weights) > 1 else None

    def by_rows(self, rows: Sequence[int]) -> list[StoredTensors]:
        """Return views of the codes and scales of so many rows each, one below the other."""
        parts = zip(self._codes_NK.split(list(rows)), self._scales_N.split(list(rows)), strict=True)
        return [{"codes": codes_nK, "scales": scales_n} for codes_nK, scales_n in parts]

    def keep_transposed(self) -> None:
        """Keep the codes a second time, transposed: gradients are faster, and the same."""
        if self._codes_KN is None:
            self._codes_KN = transposed(self._codes_NK)

    def code_room(self, like: Tensor) -> Fp8Rows | None:
        return empty_rows(like, width=self.in_features) if has_product(like, self._codes_NK) else None

    def reading(self, codes: Fp8Rows) -> _CodedInput:
        return _CodedInput(self, codes)

    def forward(self, x_TK: Tensor, codes: Fp8Rows | None = None) -> Tensor:
        return fp8_forward(
            x_TK,
            codes_NK=self._codes_NK,
            scales_N=self._scales_N,
            bias_N=self._bias_N,
            rows=codes,
            exact=self.is_exact,
        )

    def gradient_factors(self, like: Tensor) -> Tensor | None:
        return self._scales_N if has_product(like, self._codes_NK) else None

    def grad_input(self, dy_TN: Tensor, codes: Fp8Rows | None = None) -> Tensor:
        return fp8_grad_input(
            dy_TN,
            codes_NK=self._codes_NK,
            scales_N=self._scales_N,
            codes_KN=self._codes_KN,
            ones_K=self._ones_K,
            rows=codes,
            exact=self.is_exact,
        )


class _CodedInput:
    """An fp8 linear for one input, whose codes are there already.

    A linear's autograd node keeps this until its backward pass, which has no use for the codes: the product lets go of
    them. Whatever is multiplied after that is rounded as it arrives, to the same bits.
    """

    def __init__(self, linear: Fp8Linear, codes: Fp8Rows) -> None:
        self._linear = linear
        self._codes: Fp8Rows | None = codes

    @property
    def in_features(self) -> int:
        return self._linear.in_features

    @property
    def out_features(self) -> int:
        return self._linear.out_features

    @property
    def dtype(self) -> torch.dtype:
        return self._linear.dtype

    @property
    def device(self) -> torch.device:
        return self._linear.device

    @property
    def num_bytes(self) -> int:
        return self._linear.num_bytes

    def forward(self, x_TK: Tensor) -> Tensor:
        codes, self._codes = self._codes, None
        if codes is not None and x_TK.shape != codes.codes_TK.shape:
            raise ShapeError(f"x is {tuple(x_TK.shape)} but its codes are {tuple(codes.codes_TK.shape)}")
        return self._linear.forward(x_TK, codes)

    def gradient_factors(self, like: Tensor) -> Tensor | None:
        return self._linear.gradient_factors(like)

    def grad_input(self, dy_TN: Tensor, codes: Fp8Rows | None = None) -> Tensor:
        return self._linear.grad_input(dy_TN, codes)


@functools.lru_cache(maxsize=64)
def _ones(width: int, device: torch.device) -> Tensor:
    """Return scales that change nothing, one tensor for all linears of a width: no pass has to fill them."""
    return torch.ones(width, dtype=torch.float32, device=device)


def _quantise(weight_NK: Tensor) -> StoredTensors:
    rows = quantise_rows(weight_NK)
    return {"codes": rows.codes_TK, "scales": rows.scales_T}


def _assemble(pieces: Sequence[StoredTensors], bias_N: Tensor | None, dtype: torch.dtype) -> Fp8Linear:
    if len(pieces) == 1:
        return Fp8Linear(pieces[0]["codes"], pieces[0]["scales"], bias_N, dtype=dtype)
    # torch concatenates no 8-bit floats
    codes_NK = torch.cat([piece["codes"].view(torch.uint8) for piece in pieces]).view(torch.float8_e4m3fn)
    return Fp8Linear(codes_NK, torch.cat([piece["scales"] for piece in pieces]), bias_N, dtype=dtype)


def _disassemble(product: FrozenProduct, rows: Sequence[int]) -> list[StoredTensors]:
    assert isinstance(product, Fp8Linear), "products of this format"
    return product.by_rows(rows)


def _copy_bytes(weight_bytes: int, room_bytes: int) -> int:
    return weight_bytes if 2 * weight_bytes <= KEPT_SHARE * room_bytes else 0


def _finish(products: Collection[FrozenProduct], room_bytes: int | None) -> None:
    """Keep transposed copies where there is room; a CPU has no use for them."""
    ours = [product for product in products if isinstance(product, Fp8Linear)]
    if not ours or (device := ours[0].device).type != "cuda":
        return
    room = torch.cuda.get_device_properties(device).total_memory if room_bytes is None else room_bytes
    if _copy_bytes(sum(product.num_bytes for product in ours), room):
        for product in ours:
            product.keep_transposed()


_QUANTISATION = Quantisation(quantise=_quantise, assemble=_assemble, disassemble=_disassemble, finish=_finish)
FORMAT = WeightFormat(
    name=DECLARATION.name,
    summary=DECLARATION.summary,
    freeze=_QUANTISATION.freeze,
    weight_bytes=lambda num_out, num_in, _: num_out * (num_in + torch.float32.itemsize),
    compute_dtypes=(torch.float32, torch.bfloat16),
    quantisation=_QUANTISATION,
    device_problem=fp8_problem,
    gpu_needs="compute capability 8.9 or newer (L40S, H100, H200)",
    copy_bytes=_copy_bytes,
)
