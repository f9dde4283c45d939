"""How PEFT names the tensors of an adapter: ``base_model.model.PATH_OF_THE_LINEAR`` and one of these ends."""

from __future__ import annotations

__all__ = ["LORA_A", "LORA_B", "MAGNITUDE", "PREFIX"]

PREFIX = "base_model.model."
LORA_A = ".lora_A.weight"
LORA_B = ".lora_B.weight"
# of DoRA
MAGNITUDE = ".lora_magnitude_vector"
