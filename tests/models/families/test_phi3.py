"""Phi-3: logits, training and saved adapters equal transformers' and PEFT's, one pair of factors over q, k and v."""

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
from tests.models.fixtures.tiny_checkpoints import edit_config, save_checkpoint

PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"pad_token_id": 0, "sliding_window": None},
    "window": {"pad_token_id": 0, "sliding_window": 17},
    "part of a head": {
        "pad_token_id": 0,
        "sliding_window": None,
        "rope_parameters": {**PLAIN, "partial_rotary_factor": 2 / 3},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Phi3", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("phi3", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)


def test_an_adapter_adapts_the_linears_of_the_checkpoint(tmp_path: Path) -> None:
    config = read_config(save_checkpoint(tmp_path, "Phi3", pad_token_id=0))
    own = {name.rpartition(".")[2]: shape for name, shape in linear_shapes(config).items()}
    assert own == {"qkv_proj": (24, 48), "o_proj": (24, 24), "gate_up_proj": (24, 74), "down_proj": (37, 24)}
    check_degree(config, 1)
    with pytest.raises(InputError, match="2 ranks for a model whose q, k and v are one linear"):
        check_degree(config, 2)


def test_frequencies_that_change_with_the_length_are_left_to_transformers(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Phi3", pad_token_id=0)
    assert read_config(folder).bridged is None
    factors = {"short_factor": [1.0] * 3, "long_factor": [2.0] * 3, "rope_theta": 1e4}
    edit_config(folder, rope_parameters={"rope_type": "longrope", **factors}, original_max_position_embeddings=64)
    assert read_config(folder).bridged is not None
