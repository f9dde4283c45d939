"""GLM-4-0414: logits, training and saved adapters equal transformers' and PEFT's, with norms around the blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers

CASES: dict[str, dict[str, Any]] = {
    "half of a head": {"pad_token_id": 0, "eos_token_id": 2, "head_dim": 8},
    "biases": {"pad_token_id": 0, "eos_token_id": 2, "head_dim": 12, "attention_bias": True},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Glm4", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("glm4", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)
