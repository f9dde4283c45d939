"""How many adapters a server keeps on its device and in host memory."""

from __future__ import annotations

from dataclasses import dataclass

from cohort.adapters.bank import aligned_rank

__all__ = ["AdapterPoolSettings"]


@dataclass(frozen=True, kw_only=True)
class AdapterPoolSettings:
    """How many adapters are where; vLLM's names.

    Attributes:
        max_loras: Most adapters in slots of the device, and so in one pass.
        max_lora_rank: The largest rank that is accepted.
        max_cpu_loras: Most adapters whose weights stay in host memory; further ones are read from disk again.
    """

    max_loras: int = 16
    max_lora_rank: int = 64
    max_cpu_loras: int = 256

    def __post_init__(self) -> None:
        for name in ("max_loras", "max_lora_rank", "max_cpu_loras"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def num_rank_rows(self) -> int:
        """Rank rows of a bank with room for all; magnitudes take a row of a tile more: one such adapter always fits."""
        rank = aligned_rank(self.max_lora_rank)
        return max(self.max_loras * rank, aligned_rank(rank + 1))
