"""What training and serving need of a frozen model, so that plain, sharded and staged ones are interchangeable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from cohort.adapters.linear import LoraContext
from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.attention import AttentionContext
from cohort.models.config import DecoderConfig

__all__ = ["Backbone", "BackboneLayer"]


class BackboneLayer(Protocol):
    """One decoder layer over a packed stream."""

    def __call__(
        self,
        residual_TD: Tensor,
        delta_TD: Tensor | None,
        *,
        cos_TE: Tensor,
        sin_TE: Tensor,
        attention: AttentionContext,
        lora: LoraContext | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream and what is still to be added to it.

        ``delta_TD`` is what the layer before left to add (None before the first): the addition is fused into the norm.
        """
        ...


class Backbone(Protocol):
    """A frozen decoder over a packed stream."""

    @property
    def config(self) -> DecoderConfig: ...

    @property
    def layers(self) -> Sequence[BackboneLayer]:
        """The decoder layers, in order."""
        ...

    @property
    def head(self) -> FrozenProduct:
        """The product from hidden states to vocabulary logits."""
        ...

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """``(in_features, out_features)`` of each adaptable linear, by full module path."""
        ...

    def embed(self, tokens_T: Tensor) -> Tensor: ...

    def forward(
        self,
        tokens_T: Tensor,
        *,
        positions_T: Tensor,
        attention: AttentionContext,
        lora: LoraContext | None,
        gradient_checkpointing: bool = False,
    ) -> Tensor:
        """Return hidden states [T, D] after the final norm.

        With ``gradient_checkpointing`` a layer keeps only its input and is recomputed in the backward pass.
        """
        ...
