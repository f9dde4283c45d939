"""OLMo 2: logits, training and saved adapters equal transformers' and PEFT's, queries normed over all heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import InputError
from cohort.models.config_file import read_config
from cohort.ranks.tensor.base_shards import check_degree
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal
from tests.models.families.logits import assert_logits_equal_transformers
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

CASES: dict[str, dict[str, Any]] = {
    "plain": {"pad_token_id": 0},
    "biases": {"pad_token_id": 0, "attention_bias": True, "tie_word_embeddings": True},
    "one key head": {"pad_token_id": 0, "num_key_value_heads": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Olmo2", tmp_path, **CASES[case])


@pytest.mark.filterwarnings("ignore")
def test_training_and_saved_adapters_equal_peft(tmp_path: Path) -> None:
    found = compare(save_tiny("olmo2", tmp_path / "model"))
    assert found.way == "native"
    require_equal(found)


def test_ranks_do_not_divide_what_is_normed_over_all_heads(tmp_path: Path) -> None:
    config = read_config(save_checkpoint(tmp_path, "Olmo2", pad_token_id=0))
    with pytest.raises(InputError, match="2 ranks for a model whose queries are normalised over all heads"):
        check_degree(config, 2)
