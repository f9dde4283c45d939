"""The adapter that trials begin with, in place of drawn weights."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AdapterStart"]


@dataclass(frozen=True, kw_only=True)
class AdapterStart:
    """A plain LoRA adapter in PEFT's format; each trial that begins with it is the same function at its first step.

    Attributes:
        directory: Where its files are.
        sha256: SHA-256 over its files (hex).
        r, lora_alpha, use_rslora: As its configuration has them: a trial with others would begin as another model.
    """

    directory: str
    sha256: str
    r: int
    lora_alpha: float
    use_rslora: bool
