"""Qwen3-MoE: logits equal transformers' with dense layers among those of experts; what is not native is bridged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.models.checkpoint_layout import expert_parameters, linear_shapes, module_names
from cohort.models.config_file import read_config
from tests.models.families.logits import assert_logits_equal_transformers
from tests.models.fixtures.tiny_checkpoints import edit_config, save_checkpoint

EXPERTS: dict[str, Any] = {"head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights-that-add-up-to-1": {"norm_topk_prob": True, "attention_bias": True},
    "a-dense-layer-named": {"num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": True},
    "every-other-layer-dense": {"num_hidden_layers": 4, "decoder_sparse_step": 2},
    "one-expert-a-token": {"num_experts_per_tok": 1, "norm_topk_prob": True},
    "window": {"use_sliding_window": True, "sliding_window": 17},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Qwen3Moe", tmp_path, **{**EXPERTS, **CASES[case]})


def test_adapters_leave_dense_layers_alone_whose_names_peft_takes_for_experts(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Qwen3Moe", **EXPERTS, num_hidden_layers=3, mlp_only_layers=[1])
    config = read_config(folder)
    assert config.bridged is None
    assert {name.rsplit(".", 1)[-1] for name in linear_shapes(config)} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert expert_parameters(config) == {
        f"model.layers.{layer}.mlp.experts.{own}": shape
        for layer in (0, 2)
        for own, shape in (("gate_up_proj", (5, 24, 40)), ("down_proj", (5, 20, 24)))
    }
    # what PEFT could take a target's name for
    assert "model.layers.1.mlp.down_proj" in module_names(config)
    assert "model.layers.0.mlp.gate" in module_names(config)


@pytest.mark.parametrize("settings", [{"num_local_experts": 0}, {"quantization_config": {"quant_method": "fp8"}}])
def test_no_experts_and_weights_stored_in_blocks_are_read_by_transformers(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = save_checkpoint(tmp_path, "Qwen3Moe", **EXPERTS)
    edit_config(folder, **settings)
    assert read_config(folder).bridged is not None


def test_settings_as_published_checkpoints_state_them(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Qwen3Moe", **EXPERTS)
    found = read_config(folder).mixture
    edit_config(folder, num_experts=5)
    text = (folder / "config.json").read_text().replace('"num_local_experts": 5', '"num_experts": 5')
    (folder / "config.json").write_text(text)
    assert read_config(folder).mixture == found
