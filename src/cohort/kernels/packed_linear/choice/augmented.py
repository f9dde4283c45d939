"""The augmented product: S as further columns of X and B as further columns of W, so that one BLAS call gives Y.

``[X, sS] [W, B^T]^T = X W^T + s S B^T`` where a row of sS is zero outside its own slot's rank rows. Y is written once
and never read back, for C / K more multiplications.

It needs room on both sides: X is made as the first columns of a wider buffer (:class:`PaddedRows`), and the frozen
weight has spare columns (:mod:`cohort.models.spare_columns`). B is copied into them in every pass (a few
microseconds, against a copy that an optimizer, an insertion or a second bank could leave stale). What is not finite in
B enters as zero and is reported instead, and S of the slot's own rows becomes NaN: 0 x NaN would otherwise reach every
other slot.

Shapes:  T rows of the stream · K input width · C further columns, one for each rank row of the bank that is in use
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice
from cohort.kernels.packed_linear.frozen_product import FrozenProduct, can_augment
from cohort.kernels.packed_linear.launch.tables import LaunchTables
from cohort.kernels.packed_linear.tables import LoraPart

__all__ = ["PaddedRows", "augmented_columns", "padded_rows"]

# rows begin at multiples of 128 bytes in 16 bits
_STRIDE_ALIGNMENT = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedRows:
    """Rows with spare columns behind them.

    Attributes:
        buffer_TX: The whole, [T, K + C or more].
        width: K.
        num_columns: C; columns beyond ``width + num_columns`` are padding that is never read.
    """

    buffer_TX: Tensor
    width: int
    num_columns: int

    @property
    def rows_TK(self) -> Tensor:
        return self.buffer_TX[:, : self.width]

    @property
    def spare_TC(self) -> Tensor:
        return self.buffer_TX[:, self.width : self.width + self.num_columns]

    @property
    def wide_TX(self) -> Tensor:
        return self.buffer_TX[:, : self.width + self.num_columns]

    def holds(self, x_TK: Tensor) -> bool:
        """Return whether ``x`` is these rows and no copy of them."""
        rows = self.rows_TK
        # the stride over a single row means nothing
        same_rows = x_TK.stride() == rows.stride() or rows.shape[0] <= 1
        return same_rows and x_TK.data_ptr() == rows.data_ptr() and x_TK.shape == rows.shape


def padded_rows(like: Tensor, *, num_rows: int, width: int, num_columns: int) -> PaddedRows:
    """Return empty rows with spare columns, in the dtype and on the device of ``like``."""
    whole = -(-(width + num_columns) // _STRIDE_ALIGNMENT) * _STRIDE_ALIGNMENT
    return PaddedRows(buffer_TX=like.new_empty(num_rows, whole), width=width, num_columns=num_columns)


def augmented_columns(
    frozen: FrozenProduct, parts: Sequence[LoraPart], *, tables: LaunchTables, tiles: TileChoice
) -> int:
    """Return how many further columns the product of this pass takes, 0 where it is not augmented.

    It is where ``tiles`` say so and: one part owns all output columns, the weight has enough spare columns, the
    stream has the rows and no more rank rows are in use than ``tiles`` ask, no rank is above 128, and one launch serves
    one layout (a graph's next pack might use other rank rows; what graphs record is too short to gain).
    """
    asked = tiles.term_forward is TermPlace.AUGMENTED and tables.num_rows >= tiles.augmented_rows
    if not asked or tables.fixed_launch or len(parts) != 1 or parts[0].b_RN.shape[1] != frozen.out_features:
        return 0
    # S of a rank above 128 comes from several launches, each of which would write zeros over what the others spread
    if len(tables.passes) > 1:
        return 0
    b_RN, spare_NC, used = parts[0].b_RN, _spare(frozen), tables.num_rank_rows
    if spare_NC is None or used > min(spare_NC.shape[1], tiles.augmented_columns, b_RN.shape[0]):
        return 0
    # a BLAS wants rows that begin at multiples of 16 bytes
    aligned = frozen.in_features * b_RN.element_size() % 16 == 0 and tables.slots_are_aligned
    return used if aligned and b_RN.dtype == spare_NC.dtype else 0


def _spare(frozen: FrozenProduct) -> Tensor | None:
    return frozen.spare_NC if can_augment(frozen) else None
