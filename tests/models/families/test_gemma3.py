"""Gemma 3: logits, training and saved adapters equal transformers' and PEFT's, with two bases of frequencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.models.config_file import read_config
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers
from tests.models.fixtures.tiny_checkpoints import edit_config, save_checkpoint

LAYERS = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
LOCAL = {"rope_type": "default", "rope_theta": 100.0}
CASES: dict[str, dict[str, Any]] = {
    "plain": {**LAYERS, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 20},
    "own bases": {
        **LAYERS,
        "head_dim": 6,
        "query_pre_attn_scalar": 17,
        "sliding_window": 9,
        "rope_parameters": {
            "sliding_attention": LOCAL,
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50_000.0},
        },
    },
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Gemma3", tmp_path, config="Gemma3Text", **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("gemma3_text", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)


def test_another_rule_for_windows_is_left_to_transformers(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Gemma3", config="Gemma3Text", **CASES["own bases"])
    assert read_config(folder).local_rotary is not None
    rules: Any = CASES["own bases"]["rope_parameters"]
    edit_config(folder, rope_parameters={**rules, "sliding_attention": {**LOCAL, "rope_type": "linear", "factor": 2.0}})
    assert read_config(folder).bridged is not None
