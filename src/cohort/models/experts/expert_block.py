"""A block of frozen experts with the adapters of each token's own trial on them.

Shapes:  T rows of the stream · J experts of a token · S pairs of both · P rows sorted by expert · E experts
         D hidden width · K input width · N output width of one product
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cohort.adapters.expert_names import expert_name
from cohort.adapters.linear import LoraContext
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.packed_linear import SlotTable, packed_linear
from cohort.kernels.segments import SegmentTable
from cohort.models.experts.grouped import grouped_block
from cohort.models.experts.routing import RoutedRows, route_rows
from cohort.models.experts.stacked_weights import StackedWeights

__all__ = ["ExpertBlock"]

_NO_SLOTS = SlotTable(row_starts=(), ranks=(), scales=(), dropouts=())


@dataclass(kw_only=True, eq=False)
class ExpertBlock:
    """What each expert computes: ``down(activation(up(x)))``, summed over a token's experts by their weights.

    Attributes:
        up: The products of the experts with their input, gate and up side by side where they have a gate.
        down: Those back to the hidden width.
        activation: From the rows [P, N] of ``up`` to the input [P, K] of ``down``, row by row.
        is_exact: Whether a row must have the same bits in any stream on a GPU, too.
    """

    up: StackedWeights
    down: StackedWeights
    activation: Callable[[Tensor], Tensor]
    is_exact: bool = False

    def __call__(
        self, x_TD: Tensor, index_TJ: Tensor, weights_TJ: Tensor, *, lora: LoraContext | None, pads: bool = False
    ) -> Tensor:
        """Return the sum [T, D] over each token's experts; no token is dropped.

        On a CPU each product is computed expert by expert, at the true rank and sample by sample: a row's bits do not
        depend on who shares its expert. On a GPU one grouped product takes all experts.

        Args:
            index_TJ: The experts of each token; numbers from E on name none.
            weights_TJ: How much each counts.
            pads: As in :func:`route_rows`; for streams of several sequences on a CPU.
        """
        if lora is not None and not self.is_adapted(lora):
            lora = None
        if x_TD.is_cuda or choose_backend(x_TD) is Backend.TRITON:
            return grouped_block(
                x_TD,
                index_TJ,
                weights_TJ,
                up=self.up,
                down=self.down,
                activation=self.activation,
                lora=lora,
                exact=self.is_exact,
            )
        segments = _no_segments(len(x_TD)) if lora is None else lora.segments
        routed = route_rows(index_TJ, num_experts=self.up.num_experts, segments=segments, pads=pads)
        hidden_PK = self.activation(_per_expert(self.up, routed.gather(x_TD), routed, lora))
        y_SD = routed.of_pairs(_per_expert(self.down, hidden_PK, routed, lora))
        return summed(y_SD, weights_TJ).to(x_TD.dtype)

    def is_adapted(self, lora: LoraContext) -> bool:
        """Return whether an adapter of the pass has factors for these experts."""
        return any(expert_name(stacked.name, 0) in lora.factors for stacked in (self.up, self.down))


def summed(y_SD: Tensor, weights_TJ: Tensor) -> Tensor:
    """Return the sum [T, D] of each token's pairs, in the order of its experts."""
    num_tokens, each = weights_TJ.shape
    y_TJD = y_SD.view(num_tokens, each, y_SD.shape[1]) * weights_TJ[:, :, None]
    total_TD = y_TJD[:, 0]
    for place in range(1, each):
        total_TD = total_TD + y_TJD[:, place]
    return total_TD


def _per_expert(stacked: StackedWeights, x_PK: Tensor, routed: RoutedRows, lora: LoraContext | None) -> Tensor:
    """Return the product [P, N] of each expert with its own rows, and the term of each row's adapter."""
    pieces = [x_PK.new_zeros(0, stacked.out_features)]
    for own in routed.experts:
        name = expert_name(stacked.name, own.expert)
        part = None if lora is None else lora.factors.get(name)
        pieces.append(
            packed_linear(
                x_PK[own.rows],
                frozen=stacked.products[own.expert],
                parts=() if part is None else (part,),
                slots=_NO_SLOTS if lora is None or part is None else lora.slots,
                segments=_no_segments(own.segments.num_rows) if part is None else own.segments,
            )
        )
    return torch.cat(pieces)


def _no_segments(num_rows: int) -> SegmentTable:
    return SegmentTable(num_rows=num_rows, offsets=(0,), samples=())
