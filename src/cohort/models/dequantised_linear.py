"""Products of a weight that is kept in few bits and dequantised, whole, for each product.

The dequantised copy lives for one product: reading the codes and writing 2 bytes a weight takes a tenth of a product of
8,192 rows, and one linear at a time is there in 16 bits.

Shapes:  T rows of the stream · K input width · N output width
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from cohort.kernels.exact_product import AgreedShapes, exact_product
from cohort.kernels.row_stable_product import row_stable_product

__all__ = ["DequantisedLinear"]


class DequantisedLinear(ABC):
    """``y = x W^T (+ bias)`` with W [N, K] as :meth:`write_weight` gives it.

    Satisfies :class:`cohort.kernels.packed_linear.FrozenProduct`.

    Attributes:
        is_exact: Whether a row's bits must not follow from the rows around it, on a GPU, too.
        agreed_shapes: As of :class:`~cohort.kernels.packed_linear.frozen_product.AskingProduct`.
    """

    def __init__(self, shape: tuple[int, int], bias_N: Tensor | None, *, dtype: torch.dtype) -> None:
        """Begin with the weight's shape [N, K]; ``dtype`` is that of inputs, outputs and the dequantised weight."""
        self._shape, self._bias_N, self._dtype = shape, bias_N, dtype
        self.is_exact = False
        self.agreed_shapes: AgreedShapes | None = None

    @abstractmethod
    def write_weight(self, out_NK: Tensor) -> None:
        """Write the weight into ``out``, contiguous."""

    @property
    @abstractmethod
    def streamed_weights(self) -> tuple[Tensor, ...]:
        """The tensors that the weight is kept in, each contiguous; the bias is not among them."""

    @abstractmethod
    def place_weights(self, weights: Sequence[Tensor]) -> None:
        """Read these tensors from now on; they are like :attr:`streamed_weights`."""

    @property
    def in_features(self) -> int:
        return self._shape[1]

    @property
    def out_features(self) -> int:
        return self._shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight as it is kept, and of the bias."""
        bias = 0 if self._bias_N is None else self._bias_N.nbytes
        return bias + sum(tensor.nbytes for tensor in self.streamed_weights)

    @torch.no_grad()
    def forward(self, x_TK: Tensor) -> Tensor:
        if self.is_exact:
            return exact_product(x_TK, self._weight_NK(), bias_N=self._bias_N, forward=True, agreed=self.agreed_shapes)
        return row_stable_product(x_TK, self._weight_NK().t(), self._bias_N)

    @torch.no_grad()
    def grad_input(self, dy_TN: Tensor) -> Tensor:
        if self.is_exact:
            return exact_product(dy_TN, self._weight_NK(), forward=False, agreed=self.agreed_shapes)
        return row_stable_product(dy_TN, self._weight_NK())

    @property
    def can_accumulate(self) -> bool:
        """True without a bias: the BLAS adds onto its output for free, but not a bias as well."""
        return self._bias_N is None and not self.is_exact

    @torch.no_grad()
    def add_forward(self, x_TK: Tensor, y_TN: Tensor) -> None:
        y_TN.addmm_(x_TK, self._weight_NK().T)

    @torch.no_grad()
    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        dx_TK.addmm_(dy_TN, self._weight_NK())

    def _weight_NK(self) -> Tensor:
        weight_NK = torch.empty(self._shape, dtype=self._dtype, device=self.streamed_weights[0].device)
        self.write_weight(weight_NK)
        return weight_NK
