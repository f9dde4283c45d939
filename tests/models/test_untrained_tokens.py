"""A token that training never showed is known by its output row: zero, or like those of many others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cohort.models.untrained_tokens import looks_untrained


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight"])
def test_rows_that_stayed_together_are_untrained_and_those_that_went_apart_are_not(tmp_path: Path, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(40, 16, generator=generator)
    # where initialisation left them: one vector, with a little noise
    table[10:20] = table[10] + 1e-3 * torch.randn(10, 16, generator=generator)
    table[30] = 0
    table[35] = table[36]
    save_file({name: table, "model.norm.weight": torch.ones(16)}, tmp_path / "model.safetensors")
    assert [token for token in range(40) if looks_untrained(tmp_path, token)] == [*range(10, 20), 30]
    assert not looks_untrained(tmp_path, 40), "no such token"


def test_the_output_layer_decides_where_it_is_not_the_table_of_tokens(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": torch.ones(40, 16), "lm_head.weight": torch.randn(40, 16)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert not looks_untrained(tmp_path, 3)
