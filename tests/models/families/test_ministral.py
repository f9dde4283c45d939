"""Ministral: logits, training and saved adapters equal transformers' and PEFT's, with windows in some layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers

CASES: dict[str, dict[str, Any]] = {
    "plain": {"sliding_window": 17, "head_dim": 8, "layer_types": ["full_attention"] * 2},
    "windows": {"sliding_window": 17, "head_dim": 6, "layer_types": ["sliding_attention", "full_attention"]},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Ministral", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("ministral", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)
