"""Weights kept in the dtype the model computes in: float32, bfloat16, float16 or float64.

Shapes:  T rows · K input width · X input width and spare columns · N output width
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.kernels.exact_product import AgreedShapes, exact_product
from cohort.kernels.few_rows_product import MOST_FEW_ROWS, FewRowsWeight
from cohort.kernels.row_stable_product import row_stable_product
from cohort.models.weight_formats.declaration import FormatDeclaration
from cohort.models.weight_formats.weight_format import WeightFormat

__all__ = ["DECLARATION", "FORMAT", "FrozenLinear"]

DECLARATION = FormatDeclaration(name="none", summary="weights as the model computes, 2 bytes each on a GPU")


class FrozenLinear:
    """``y = x W^T (+ bias)`` in the dtype the weight is stored in.

    Satisfies :class:`cohort.kernels.packed_linear.FrozenProduct`. Sibling linears are fused by giving one weight whose
    rows are theirs one below the other.

    Attributes:
        is_exact: Whether a row's bits must not follow from the rows around it, on a GPU, too.
        agreed_shapes: As of :class:`~cohort.kernels.packed_linear.frozen_product.AskingProduct`.
    """

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None = None, *, in_features: int | None = None) -> None:
        """Wrap a weight [N, K]. Columns beyond ``in_features`` are spare columns, whose content never matters."""
        if weight_NK.requires_grad or (bias_N is not None and bias_N.requires_grad):
            raise ValueError("a frozen weight must not require a gradient")
        self._wide_NX = weight_NK
        self._weight_NK = weight_NK if in_features is None else weight_NK[:, :in_features]
        self._bias_N = bias_N
        self.is_exact = False
        self.agreed_shapes: AgreedShapes | None = None
        self._few_rows: FewRowsWeight | None = None

    @property
    def in_features(self) -> int:
        return self._weight_NK.shape[1]

    @property
    def out_features(self) -> int:
        return self._weight_NK.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes of weight, spare columns and bias."""
        return self._wide_NX.nbytes + (0 if self._bias_N is None else self._bias_N.nbytes)

    @property
    def dtype(self) -> torch.dtype:
        return self._weight_NK.dtype

    @property
    def device(self) -> torch.device:
        return self._weight_NK.device

    def forward(self, x_TK: Tensor) -> Tensor:
        if self._few_rows is not None and x_TK.shape[0] <= MOST_FEW_ROWS and not torch.is_grad_enabled():
            found_TN = self._few_rows.product(x_TK)
            if found_TN is not None:
                return found_TN
        return self._forward(x_TK)

    @torch.no_grad()
    def _forward(self, x_TK: Tensor) -> Tensor:
        if self.is_exact:
            return exact_product(x_TK, self._weight_NK, bias_N=self._bias_N, forward=True, agreed=self.agreed_shapes)
        return row_stable_product(x_TK, self._weight_NK.t(), self._bias_N)

    @torch.no_grad()
    def grad_input(self, dy_TN: Tensor) -> Tensor:
        if self.is_exact:
            return exact_product(dy_TN, self._weight_NK, forward=False, agreed=self.agreed_shapes)
        return row_stable_product(dy_TN, self._weight_NK)

    def arrange_for_few_rows(self) -> None:
        """Keep a copy of the weight that a CPU multiplies few rows by faster, to the same bits; made when first used.

        Of float32 weights alone, which must stay where they are.
        """
        if self._few_rows is None and self.dtype == torch.float32 and self.device.type == "cpu":
            self._few_rows = FewRowsWeight(self._weight_NK, self._bias_N)

    @property
    def plain_weight_NK(self) -> Tensor | None:
        """The weight where the product is x W^T and nothing else: without a bias."""
        return self._weight_NK if self._bias_N is None else None

    @property
    def spare_NC(self) -> Tensor | None:
        """The columns behind W, which :meth:`forward_augmented` multiplies as well; None where there are none."""
        spare = self._wide_NX[:, self.in_features :]
        return spare if spare.shape[1] else None

    @torch.no_grad()
    def reserve_columns(self, count: int) -> None:
        """Lay the weight out with ``count`` spare columns; it moves unless it has that many.

        An address taken before, as a CUDA graph takes it, is then wrong.
        """
        num_out, num_in = self._weight_NK.shape
        if count == self._wide_NX.shape[1] - num_in:
            return
        wide_NX = self._weight_NK.new_empty(num_out, num_in + count)
        wide_NX[:, :num_in].copy_(self._weight_NK)
        self._wide_NX, self._weight_NK = wide_NX, wide_NX[:, :num_in]

    @torch.no_grad()
    def forward_augmented(self, x_TX: Tensor) -> Tensor:
        """Return the product of x [T, K + c] with W and the first c columns behind it; outside autograd."""
        return F.linear(x_TX, self._wide_NX[:, : x_TX.shape[1]], self._bias_N)

    @property
    def streamed_weights(self) -> tuple[Tensor, ...]:
        """The weight, without spare columns; the bias is resident, since autograd may keep it."""
        return (self._weight_NK.contiguous(),)

    def place_weights(self, weights: Sequence[Tensor]) -> None:
        (self._weight_NK,) = weights
        self._wide_NX, self._few_rows = self._weight_NK, None

    @property
    def can_accumulate(self) -> bool:
        """True without a bias: the BLAS adds onto its output for free, but not a bias as well."""
        return self._bias_N is None and not self.is_exact

    @torch.no_grad()
    def add_forward(self, x_TK: Tensor, y_TN: Tensor) -> None:
        y_TN.addmm_(x_TK, self._weight_NK.T)

    @torch.no_grad()
    def add_grad_input(self, dy_TN: Tensor, dx_TK: Tensor) -> None:
        dx_TK.addmm_(dy_TN, self._weight_NK)


FORMAT = WeightFormat(
    name=DECLARATION.name,
    summary=DECLARATION.summary,
    freeze=FrozenLinear,
    weight_bytes=lambda num_out, num_in, dtype: num_out * num_in * dtype.itemsize,
    compute_dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.float64),
)
