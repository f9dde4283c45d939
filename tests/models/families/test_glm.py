"""GLM-4 of 2024: logits, training and saved adapters equal transformers' and PEFT's, half of each head rotated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.ranks.tensor.base_shards import check_degree
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

CASES: dict[str, dict[str, Any]] = {
    "half of a head": {"pad_token_id": 0, "eos_token_id": 2, "head_dim": 8},
    "no biases": {"pad_token_id": 0, "eos_token_id": 2, "head_dim": 12, "attention_bias": False},
    "whole heads": {"pad_token_id": 0, "eos_token_id": 2, "head_dim": 6, "partial_rotary_factor": 1.0},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Glm", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("glm", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)


def test_an_adapter_adapts_gate_and_up_together(tmp_path: Path) -> None:
    config = read_config(save_checkpoint(tmp_path, "Glm", pad_token_id=0, eos_token_id=2, head_dim=8))
    own = {name.rpartition(".")[2]: shape for name, shape in linear_shapes(config).items()}
    expected = {"q_proj": (24, 32), "k_proj": (24, 16), "v_proj": (24, 16), "o_proj": (32, 24)}
    assert own == {**expected, "gate_up_proj": (24, 74), "down_proj": (37, 24)}
    with pytest.raises(InputError, match="2 ranks for a model whose gate and up are one linear"):
        check_degree(config, 2)
