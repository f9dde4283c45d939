"""The layout names every tensor that transformers saves, and fuses siblings by rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from cohort.models.checkpoint_layout import checkpoint_layout, linear_shapes
from cohort.models.config_file import read_config
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 10},
    "Gemma2": {"head_dim": 8},
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"head_dim": 10, "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [1]},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_saved_tensor_has_its_place_and_shape(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family, **FAMILIES[family])
    saved = {name: tuple(tensor.shape) for name, tensor in load_file(folder / "model.safetensors").items()}
    layout = checkpoint_layout(read_config(folder))
    assert {piece.key: piece.shape for fused in layout for piece in fused.pieces} == saved
    assert len({fused.name for fused in layout}) == len(layout)


def test_siblings_are_fused_by_rows_and_a_bias_comes_before_its_weight(tmp_path: Path) -> None:
    layout = checkpoint_layout(read_config(save_checkpoint(tmp_path, "Qwen2")))
    names = [fused.name for fused in layout]
    weight = layout[names.index("layers.0.qkv.weight")]
    assert weight.is_linear
    assert weight.shape == (24 + 12 + 12, 24)
    assert [piece.key.rsplit(".", 2)[1] for piece in weight.pieces] == ["q_proj", "k_proj", "v_proj"]
    assert names.index("layers.0.qkv.bias") == names.index("layers.0.qkv.weight") - 1
    assert not any(fused.is_linear for fused in layout if fused.name in ("embed", "head", "norm"))


def test_adaptable_linears_leave_the_head_out(tmp_path: Path) -> None:
    shapes = linear_shapes(read_config(save_checkpoint(tmp_path, "Llama")))
    assert len(shapes) == 2 * 7
    assert shapes["model.layers.1.mlp.down_proj"] == (37, 24)
    assert not any("lm_head" in name for name in shapes)
