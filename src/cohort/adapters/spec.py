"""What one adapter is: its LoRA hyperparameters, with PEFT's names and meanings."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["AdapterSpec"]


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """LoRA hyperparameters of one adapter.

    Attributes:
        r: Rank, at least 1.
        lora_alpha: Numerator of the scale, above 0.
        lora_dropout: Dropout probability on the adapter's input, in [0, 1).
        use_rslora: Scale by ``lora_alpha / sqrt(r)`` instead of ``lora_alpha / r``.
    """

    r: int
    lora_alpha: float
    lora_dropout: float = 0.0
    use_rslora: bool = False

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError(f"r must be at least 1, got {self.r}")
        if not self.lora_alpha > 0:
            raise ValueError(f"lora_alpha must be above 0, got {self.lora_alpha}")
        if not 0.0 <= self.lora_dropout < 1.0:
            raise ValueError(f"lora_dropout must be in [0, 1), got {self.lora_dropout}")

    @property
    def scale(self) -> float:
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)
