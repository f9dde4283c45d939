"""Granite: logits, training and saved adapters equal transformers' and PEFT's, with all four factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "factors": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.3,
        "logits_scaling": 1.5,
    },
    "biases": {"attention_bias": True, "mlp_bias": True, "residual_multiplier": 0.5},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Granite", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("granite", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)
