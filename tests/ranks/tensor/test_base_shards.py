"""A rank's part of the base: shards of every fused tensor, put together again, are the whole one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config_file import read_config
from cohort.ranks.tensor.base_shards import check_degree, shard_config, shard_fused, vocabulary_rows
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.ranks.tensor.divided_models import save_divided_qwen2


def test_shards_are_the_whole_tensor_and_have_the_shapes_of_the_local_sizes(tmp_path: Path) -> None:
    save_divided_qwen2(tmp_path)
    config = read_config(tmp_path)
    local = {fused.name: fused.shape for fused in checkpoint_layout(shard_config(config, size=2))}
    for fused in checkpoint_layout(config):
        whole = torch.randn(fused.shape)
        parts = [shard_fused(fused, whole, rank=rank, size=2) for rank in range(2)]
        first, second = parts
        assert first is not None
        assert first.shape == local[fused.name] or fused.name == "head"
        if fused.name.endswith((".output.bias", ".down.bias")):
            assert second is None
        elif fused.name.endswith((".output.weight", ".down.weight")):
            assert second is not None
            assert torch.equal(torch.cat([first, second], dim=1), whole)
        elif ".qkv." in fused.name or ".gate_up." in fused.name:
            assert second is not None
            start = 0
            for piece in fused.pieces:
                count = piece.shape[0]
                own = slice(start // 2, (start + count) // 2)
                assert torch.equal(torch.cat([first[own], second[own]]), whole[start : start + count])
                start += count
        else:
            assert torch.equal(first, whole)


def test_every_word_belongs_to_one_rank() -> None:
    for vocabulary, size in ((97, 4), (8, 4), (5, 4), (96, 1)):
        rows = [vocabulary_rows(vocabulary, rank=rank, size=size) for rank in range(size)]
        assert [word for own in rows for word in range(own.start, own.stop)] == list(range(vocabulary))


def test_degrees_are_named_with_those_that_fit(tmp_path: Path) -> None:
    save_divided_qwen2(tmp_path)
    config = read_config(tmp_path)
    check_degree(config, 4)
    with pytest.raises(InputError, match=r"8 ranks for a model with 4 key-value heads.*divides them: 1, 2, 4"):
        check_degree(config, 8)


def test_experts_are_not_divided(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "Mixtral", num_local_experts=4, intermediate_size=36)
    config = read_config(tmp_path)
    check_degree(config, 1)
    with pytest.raises(InputError, match=r"2 ranks for a model whose layers have experts.*whole on each GPU"):
        check_degree(config, 2)
