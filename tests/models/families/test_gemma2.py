"""Gemma 2: logits equal transformers' on small random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families.logits import assert_logits_equal_transformers
from tests.models.fixtures.tiny_checkpoints import edit_config, problems_of, save_checkpoint

CASES: dict[str, dict[str, Any]] = {
    "plain": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 20},
    "own-scale": {
        "head_dim": 6,
        "query_pre_attn_scalar": 17,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "scaled-without-caps": {
        "head_dim": 6,
        "query_pre_attn_scalar": 17,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    assert_logits_equal_transformers("Gemma2", tmp_path, **CASES[case])


def test_attention_in_both_directions_is_refused(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "Gemma2")
    edit_config(folder, use_bidirectional_attention=True)
    (problem,) = problems_of(folder)
    assert "use_bidirectional_attention: found True" in problem
