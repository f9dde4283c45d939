"""OLMo 3: logits, training and saved adapters equal transformers' and PEFT's, with two rules of frequencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers

LAYERS = {"pad_token_id": 0, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 17}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, dict[str, Any]] = {
    "plain": LAYERS,
    "yarn": {
        **LAYERS,
        "rope_parameters": {
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Olmo3", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("olmo3", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)
