"""Mixtral: logits equal transformers' on small random checkpoints, whose files have names of their own for experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.models.checkpoint_layout import checkpoint_layout, expert_parameters
from cohort.models.config_file import read_config
from cohort.models.families.mixtral import FAMILY
from tests.models.families.logits import assert_logits_equal_transformers
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

CASES: dict[str, dict[str, Any]] = {"plain": {}, "window": {"sliding_window": 17, "num_experts_per_tok": 3}}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Mixtral", tmp_path, num_local_experts=4, intermediate_size=36, **CASES[case])


def test_files_have_one_name_of_an_expert_and_adapters_another(tmp_path: Path) -> None:
    config = read_config(save_checkpoint(tmp_path, "Mixtral", num_local_experts=4))
    keys = {piece.key for fused in checkpoint_layout(config) for piece in fused.pieces}
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in keys
    assert list(expert_parameters(config))[:2] == [
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.down_proj",
    ]


def test_noise_on_what_routers_read_is_left_to_its_own_code() -> None:
    assert FAMILY.computes({"model_type": "mixtral", "router_jitter_noise": 0.0})
    assert not FAMILY.computes({"model_type": "mixtral", "router_jitter_noise": 0.1})
