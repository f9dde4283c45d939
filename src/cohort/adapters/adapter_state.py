"""What training changes of one adapter: its weights, and what its optimizer keeps for each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["AdapterState", "Moment"]


@dataclass(frozen=True)
class Moment:
    """What an optimizer keeps for every parameter from one step to the next.

    Attributes:
        name: Its name in states and in checkpoint files.
        dtype: None for that of the master weights.
        entries_per_value: Consecutive entries of a rank row that share one value; 1 for a value of each.
    """

    name: str
    dtype: torch.dtype | None = None
    entries_per_value: int = 1

    def num_columns(self, width: int) -> int:
        """Return its values in a rank row of ``width`` entries."""
        return -(-width // self.entries_per_value)


@dataclass(frozen=True, kw_only=True)
class AdapterState:
    """Everything of an adapter that training changes, each [r, D]; of a VeRA adapter one row of vectors.

    Attributes:
        moments: The optimizer's, by name; none before the first step, where all are zero.
    """

    weights: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights, **self.moments}
