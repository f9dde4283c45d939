"""Ministral 3: logits, training and saved adapters equal transformers' and PEFT's, with queries that grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "max_position_embeddings": 128,
    "llama_4_scaling_beta": 0.5,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
CASES: dict[str, dict[str, Any]] = {
    # sequences of 90 tokens pass the sixteenth five times
    "grown": {"head_dim": 8, "rope_parameters": ROPE},
    "window": {"head_dim": 6, "rope_parameters": ROPE, "sliding_window": 20},
    "never grown": {"head_dim": 8, "rope_parameters": {**ROPE, "original_max_position_embeddings": 128}},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Ministral3", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("ministral3", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)
