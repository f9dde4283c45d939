"""Base layers of a PEFT model as frozen products: plain weights as they lie, quantised ones by their own forward.

Shapes:  T rows of the input · K input width · N output width, of all siblings together
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cohort.integrations.peft_one_adapter import AddingProduct
from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.weight_formats.kinds.plain import FrozenLinear

__all__ = [
    "QuantisedBases",
    "adding_product",
    "base_width",
    "frozen_product",
    "is_plain",
    "is_quantised",
    "working_dtype",
]

# the classes of bitsandbytes' weights
_BITS_AND_BYTES = ("Params4bit", "Int8Params")


def is_plain(base: Any) -> bool:
    """Return whether a base layer is a linear whose weight is a tensor like any other."""
    return type(base) is torch.nn.Linear and not is_quantised(base)


def is_quantised(base: Any) -> bool:
    """Return whether a base layer keeps its weight in fewer bits and PEFT knows how to dequantise it.

    That is so for bitsandbytes (4 and 8 bits), HQQ and torchao.
    """
    if hasattr(base, "W_q"):
        return True
    weight = getattr(base, "weight", None)
    return type(weight).__name__ in _BITS_AND_BYTES or type(weight).__module__.startswith("torchao.")


def base_width(base: Any) -> tuple[int, str, torch.device]:
    """Return what siblings must have in common to share a product: input width, kind of weight, device."""
    weight = base.W_q if hasattr(base, "W_q") else base.weight
    return int(base.in_features), f"{type(base).__name__} {type(weight).__name__} {weight.dtype}", weight.device


def working_dtype(base: Any, x: Tensor) -> torch.dtype | None:
    """Return what products are computed in: autocast's dtype, or the weight's; None where the input has another.

    A quantised base computes in its ``compute_dtype``, or in that of the input if it has none.
    """
    own = getattr(base, "compute_dtype", None) or x.dtype if is_quantised(base) else base.weight.dtype
    if torch.is_autocast_enabled(x.device.type):
        asked = torch.get_autocast_dtype(x.device.type)
        return asked if not is_quantised(base) or own in (asked, x.dtype) else None
    return own if x.dtype == own and x.is_floating_point() else None


def frozen_product(bases: Sequence[Any], *, dtype: torch.dtype) -> FrozenProduct:
    """Return the product of base layers with one input, their outputs side by side.

    Plain weights lie in one tensor from then on.
    """
    if any(is_quantised(base) for base in bases):
        return QuantisedBases(bases, dtype=dtype)
    with torch.no_grad():
        weight = bases[0].weight if len(bases) == 1 else _side_by_side([base.weight for base in bases])
        biases = [base.bias for base in bases]
        bias = None
        if any(own is not None for own in biases):
            rows = [base.weight.new_zeros(base.out_features) if base.bias is None else base.bias for base in bases]
            bias = rows[0] if len(rows) == 1 else torch.cat(rows)
        return FrozenLinear(weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype))


def adding_product(base: Any, *, dtype: torch.dtype) -> AddingProduct:
    """Return the product of one base layer, whose weight stays where it is."""
    return QuantisedBases([base], dtype=dtype) if is_quantised(base) else _PlainBase(base, dtype=dtype)


class _PlainBase:
    """``y = x W^T (+ bias)`` of a plain linear."""

    def __init__(self, base: Any, *, dtype: torch.dtype) -> None:
        self._weight_NK = base.weight.detach().to(dtype)
        self._bias_N = None if base.bias is None else base.bias.detach().to(dtype)

    def forward(self, x_TK: Tensor) -> Tensor:
        return torch.nn.functional.linear(x_TK, self._weight_NK, self._bias_N)

    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        dx_TK.addmm_(dy_TN, self._weight_NK)


class QuantisedBases:
    """``y = x W^T (+ bias)`` as quantised layers compute it; the gradient is that of the dequantised weights.

    Satisfies :class:`cohort.kernels.packed_linear.FrozenProduct`.
    """

    def __init__(self, bases: Sequence[Any], *, dtype: torch.dtype) -> None:
        """Take layers that read one input of ``dtype``; their outputs stand side by side."""
        self._bases, self._dtype = tuple(bases), dtype
        self._starts = (0, *itertools.accumulate(int(base.out_features) for base in bases))

    @property
    def in_features(self) -> int:
        return int(self._bases[0].in_features)

    @property
    def out_features(self) -> int:
        return self._starts[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are kept, without biases."""
        return sum(int((base.W_q if hasattr(base, "W_q") else base.weight).nbytes) for base in self._bases)

    @torch.no_grad()
    def forward(self, x_TK: Tensor) -> Tensor:
        # a bias may be float32; under autocast, where the layers stood, that does not matter
        halves = self._dtype in (torch.bfloat16, torch.float16)
        with torch.autocast(x_TK.device.type, dtype=self._dtype if halves else None, enabled=halves):
            found = [base(x_TK).to(self._dtype) for base in self._bases]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    @torch.no_grad()
    def grad_input(self, dy_TN: Tensor) -> Tensor:
        from peft.utils.integrations import dequantize_module_weight

        dx_TK: Tensor | None = None
        for base, (start, stop) in zip(self._bases, itertools.pairwise(self._starts), strict=True):
            weight_NK = dequantize_module_weight(base).to(dy_TN.dtype)
            own_TK = dy_TN[:, start:stop] @ weight_NK
            dx_TK = own_TK if dx_TK is None else dx_TK.add_(own_TK)
        assert dx_TK is not None, "there is a base layer"
        return dx_TK

    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        """Add dy W to dx in place."""
        dx_TK.add_(self.grad_input(dy_TN))


def _side_by_side(weights: Sequence[torch.nn.Parameter]) -> Tensor:
    """Return the weights one below the other without a copy: from the first call on they lie in one tensor."""
    first = weights[0]
    expected = first.data_ptr()
    for weight in weights:
        if weight.data_ptr() != expected or not weight.is_contiguous():
            break
        expected += weight.numel() * weight.element_size()
    else:
        num_rows = sum(weight.shape[0] for weight in weights)
        if first.untyped_storage().nbytes() >= expected - first.untyped_storage().data_ptr():
            return first.detach().as_strided((num_rows, first.shape[1]), (first.shape[1], 1))
    together = torch.cat([weight.detach() for weight in weights])
    for weight, rows in zip(weights, together.split([weight.shape[0] for weight in weights]), strict=True):
        # the parameter, its name and its values stay; only where they lie changes
        weight.data = rows
    return together
