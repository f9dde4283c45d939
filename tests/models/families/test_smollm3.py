"""SmolLM3: logits, training and saved adapters equal transformers' and PEFT's, with layers that do not rotate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers

CASES: dict[str, dict[str, Any]] = {
    "plain": {"num_hidden_layers": 4, "pad_token_id": 0},
    "biases": {"num_hidden_layers": 3, "pad_token_id": 0, "no_rope_layers": [0, 1, 0], "attention_bias": True},
    "window": {"pad_token_id": 0, "use_sliding_window": True, "sliding_window": 17, "no_rope_layers": [1, 0]},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("SmolLM3", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("smollm3", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)
