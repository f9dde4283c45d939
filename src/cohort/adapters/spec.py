"""What one adapter is: its LoRA hyperparameters, with PEFT's names and meanings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cohort.adapters.block_diagonal import BlockDiagonal

__all__ = ["AdapterSpec"]


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """LoRA hyperparameters of one adapter.

    Attributes:
        r: Rank, at least 1.
        lora_alpha: Numerator of the scale, above 0.
        lora_dropout: Dropout probability on the adapter's input, in [0, 1).
        use_rslora: Scale by ``lora_alpha / sqrt(r)`` instead of ``lora_alpha / r``.
        use_bdlora: The block structure of BD-LoRA; None for plain LoRA. ``r`` is the rank of all blocks together.
    """

    r: int
    lora_alpha: float
    lora_dropout: float = 0.0
    use_rslora: bool = False
    use_bdlora: BlockDiagonal | None = None

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ValueError(f"r must be at least 1, got {self.r}")
        if not self.lora_alpha > 0:
            raise ValueError(f"lora_alpha must be above 0, got {self.lora_alpha}")
        if not 0.0 <= self.lora_dropout < 1.0:
            raise ValueError(f"lora_dropout must be in [0, 1), got {self.lora_dropout}")
        if self.use_bdlora is not None and self.r % self.use_bdlora.nblocks:
            raise ValueError(f"nblocks {self.use_bdlora.nblocks} does not divide r {self.r}")

    @property
    def scale(self) -> float:
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)
