"""Llama: logits equal transformers' on small random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families.logits import assert_float64_logits_equal_transformers, assert_logits_equal_transformers

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

CASES: dict[str, dict[str, Any]] = {
    "2": {"num_key_value_heads": 4},
    "grouped-heads": {},
    "one-key-head-tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "3.1": {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 1e-5},
    "linear-rope": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}},
    "yarn": {"rope_parameters": YARN_ROPE},
    "dynamic-within-context": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    "all-biases": {"attention_bias": True, "mlp_bias": True},
    "own-head-dim": {"head_dim": 10},
    "odd-sizes": {"hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 41},
    "gelu": {"hidden_act": "gelu"},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Llama", tmp_path, **CASES[case])


def test_float64_equals_transformers_to_its_last_digits(tmp_path: Path) -> None:
    assert_float64_logits_equal_transformers("Llama", tmp_path)
