"""LoRA hyperparameters mean what PEFT's mean."""

from __future__ import annotations

import pytest

from cohort.adapters.spec import AdapterSpec


def test_scale_follows_peft() -> None:
    assert AdapterSpec(r=16, lora_alpha=32).scale == 2.0
    assert AdapterSpec(r=16, lora_alpha=32, use_rslora=True).scale == 8.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"r": 0, "lora_alpha": 1}, "r must be at least 1, got 0"),
        ({"r": 1, "lora_alpha": 0}, "lora_alpha must be above 0, got 0"),
        ({"r": 1, "lora_alpha": float("nan")}, "lora_alpha must be above 0"),
        ({"r": 1, "lora_alpha": 1, "lora_dropout": 1.0}, r"lora_dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_values_are_named(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdapterSpec(**fields)  # type: ignore[arg-type]
