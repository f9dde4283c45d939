"""Qwen3: logits equal transformers' on small random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families.logits import assert_float64_logits_equal_transformers, assert_logits_equal_transformers

CASES: dict[str, dict[str, Any]] = {
    "plain": {"head_dim": 16},
    "tied-biases": {"head_dim": 6, "tie_word_embeddings": True, "attention_bias": True},
    "window": {"head_dim": 8, "use_sliding_window": True, "sliding_window": 17, "max_window_layers": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Qwen3", tmp_path, **CASES[case])


def test_float64_equals_transformers_to_its_last_digits(tmp_path: Path) -> None:
    assert_float64_logits_equal_transformers("Qwen3", tmp_path, head_dim=6)
