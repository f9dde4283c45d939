"""The frozen weights of all experts of a block for one of its products, stacked in one parameter.

Shapes:  E experts · K input width · N output width
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from cohort.models.weight_formats.kinds.plain import FrozenLinear

__all__ = ["StackedWeights"]


class StackedWeights:
    """A stacked parameter, on its own storage.

    Attributes:
        name: Its full path.
        weight_ENK: The weights, perhaps a view in another order than that of the memory.
        bias_EN: The biases; None where it has none.
    """

    def __init__(self, name: str, weight_ENK: Tensor, bias_EN: Tensor | None = None) -> None:
        self.name, self.weight_ENK, self.bias_EN = name, weight_ENK, bias_EN
        self.num_experts, self.out_features, self.in_features = weight_ENK.shape

    @cached_property
    def products(self) -> tuple[FrozenLinear, ...]:
        """The frozen product of each expert."""
        biases = [None] * self.num_experts if self.bias_EN is None else self.bias_EN.unbind()
        return tuple(FrozenLinear(own, bias) for own, bias in zip(self.weight_ENK.unbind(), biases, strict=True))
