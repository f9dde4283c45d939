"""What a packed linear must know about its adapters, as plain host values.

Shapes:  R rank rows of all slots · K input width · N output width of one part
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["LoraPart", "SlotTable"]


@dataclass(frozen=True, kw_only=True)
class SlotTable:
    """Where each slot's rank rows are in the bank, and what scales them. One entry per slot; a free slot has rank 0.

    Attributes:
        row_starts: First rank row of the slot.
        ranks: True rank r of the slot.
        scales: ``lora_alpha / r``, or ``lora_alpha / sqrt(r)`` with rsLoRA.
        dropouts: Dropout probability on the adapter's input.
    """

    row_starts: tuple[int, ...]
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    dropouts: tuple[float, ...]

    @property
    def num_slots(self) -> int:
        """Slots of the bank, free ones included."""
        return len(self.ranks)

    def rank_rows(self, slot: int) -> slice:
        """Return the rank rows of ``slot`` at its true rank."""
        return slice(self.row_starts[slot], self.row_starts[slot] + self.ranks[slot])


@dataclass(frozen=True, kw_only=True)
class LoraPart:
    """The stacked factors of one named linear: all slots' rank rows one below the other.

    B is kept transposed (rank rows by output width) so that a slot's true rank is a plain row range of both factors.

    Attributes:
        a_RK: A of every slot.
        b_RN: B^T of every slot.
        grad_a_RK, grad_b_RN: Sinks that backward adds to, in sample order, instead of returning gradients; both or
            none.
        column_start: First column of the fused frozen product that this part owns.
        module_key: Key of the module for dropout, see :func:`cohort.kernels.dropout.module_key`.
    """

    a_RK: Tensor
    b_RN: Tensor
    grad_a_RK: Tensor | None = None
    grad_b_RN: Tensor | None = None
    column_start: int = 0
    module_key: int = 0

    @property
    def columns(self) -> slice:
        """Columns of the fused output that this part owns."""
        return slice(self.column_start, self.column_start + self.b_RN.shape[1])
