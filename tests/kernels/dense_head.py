"""A frozen product over a plain weight, recording what was asked of it."""

from __future__ import annotations

from torch import Tensor

from cohort.kernels.row_stable_product import row_stable_product

__all__ = ["DenseHead"]


class DenseHead:
    """``x W^T``; ``row_counts`` lists the rows of every forward product."""

    def __init__(self, weight_VD: Tensor) -> None:
        self.weight_VD = weight_VD
        self.out_features, self.in_features = weight_VD.shape
        self.dtype, self.num_bytes = weight_VD.dtype, weight_VD.nbytes
        self.row_counts: list[int] = []

    def forward(self, x_TK: Tensor) -> Tensor:
        self.row_counts.append(x_TK.shape[0])
        return row_stable_product(x_TK, self.weight_VD.t())

    def grad_input(self, dy_TN: Tensor) -> Tensor:
        return row_stable_product(dy_TN, self.weight_VD)
