"""What every layer of a pass reads besides the stream, and where the linears of a rank's shard begin and end.

Shapes:  T rows of the stream · D hidden width · E head width
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.models.attention import AttentionContext
from cohort.models.pass_inputs.needed_rows import NeededRows

__all__ = ["SharedByLayers", "TensorRegion"]


class TensorRegion(Protocol):
    """Where the linears of a rank's shard begin and end: between them each rank computes its own part."""

    def enter(self, x_TD: Tensor) -> Tensor:
        """Return x, which all ranks have; its gradient is the sum of theirs."""
        ...

    def leave(self, y_TD: Tensor) -> Tensor:
        """Return the sum of what the ranks computed; its gradient is that of each."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedByLayers:
    """What every layer of one pass reads besides the stream.

    Attributes:
        angles: Cosines and sines [T, E] of layers that see the whole sequence.
        local_angles: Those of layers with a window.
        query_scale_T: Factor on the queries of each row, where they grow with the position.
        attention: How rows attend.
        lora: The adapters.
        has_one_node: Whether a layer may be one node of autograd, where it has the form for it.
        needed: Behind this layer's attention the only rows that are computed; None for all.
    """

    angles: tuple[Tensor, Tensor]
    local_angles: tuple[Tensor, Tensor]
    attention: AttentionContext
    lora: LoraContext | None
    query_scale_T: Tensor | None = None
    has_one_node: bool = False
    needed: NeededRows | None = None

    def leaving_out(self, needed: NeededRows | None) -> SharedByLayers:
        """Return the same for a layer that computes the ``needed`` rows alone behind its attention."""
        return self if needed is None else replace(self, needed=needed)

    def behind_attention(self) -> SharedByLayers:
        """Return what is read of the rows that are still computed behind the attention."""
        if self.needed is None or self.lora is None:
            return self
        return replace(self, lora=self.needed.narrowed(self.lora))
