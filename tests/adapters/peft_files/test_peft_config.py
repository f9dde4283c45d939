"""The configuration next to an adapter's tensors, read back by PEFT itself."""

from __future__ import annotations

import math

import pytest
from peft import LoraConfig

from cohort.adapters.peft_files.peft_config import adapter_config, shortest_target_modules
from cohort.adapters.spec import AdapterSpec


@pytest.mark.parametrize("use_rslora", [False, True])
def test_an_adapter_with_frozen_rows_is_written_as_plain_lora_of_the_same_scale(use_rslora: bool) -> None:
    spec = AdapterSpec(r=4, lora_alpha=8.0, init_lora_weights="pissa", use_rslora=use_rslora)
    config = LoraConfig(**adapter_config(spec, base_model="base", target_modules=["q_proj"]))
    assert config.r == 8
    scale = config.lora_alpha / (math.sqrt(config.r) if use_rslora else config.r)
    assert scale == pytest.approx(spec.scale)


def test_target_modules_are_suffixes_where_these_mean_the_same() -> None:
    linears = [f"layers.{layer}.{name}" for layer in range(2) for name in ("q_proj", "v_proj")]
    both = [name for name in linears if name.endswith("q_proj")]
    assert shortest_target_modules(both, linears=linears) == ["q_proj"]
    assert shortest_target_modules(both[:1], linears=linears) == both[:1]


def test_a_revision_of_the_hub_has_a_field_of_its_own() -> None:
    spec = AdapterSpec(r=4, lora_alpha=8.0)
    config = LoraConfig(**adapter_config(spec, base_model="me/base@refs/pr/1", target_modules=["q_proj"]))
    assert (config.base_model_name_or_path, config.revision) == ("me/base", "refs/pr/1")
    local = LoraConfig(**adapter_config(spec, base_model="/models/a@b", target_modules=["q_proj"]))
    assert (local.base_model_name_or_path, local.revision) == ("/models/a@b", None)
