"""Qwen2: logits equal transformers' on small random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families.logits import assert_float64_logits_equal_transformers, assert_logits_equal_transformers

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "window": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Qwen2", tmp_path, **CASES[case])


def test_float64_equals_transformers_to_its_last_digits(tmp_path: Path) -> None:
    assert_float64_logits_equal_transformers("Qwen2", tmp_path)
