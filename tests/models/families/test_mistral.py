"""Mistral: logits equal transformers' on small random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families.logits import assert_float64_logits_equal_transformers, assert_logits_equal_transformers

CASES: dict[str, dict[str, Any]] = {
    "plain": {"sliding_window": None},
    "window": {"sliding_window": 20},
    "own-head-dim": {"sliding_window": None, "head_dim": 8, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Mistral", tmp_path, **CASES[case])


def test_float64_equals_transformers_to_its_last_digits(tmp_path: Path) -> None:
    assert_float64_logits_equal_transformers("Mistral", tmp_path)
