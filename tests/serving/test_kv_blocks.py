"""The pool of keys and values: blocks are handed out zeroed, and come back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.models.config_file import read_config
from cohort.serving.kv_blocks import BLOCK_ROWS, KvBlocks, blocks_for
from tests.models.tiny_checkpoints import save_checkpoint


@pytest.fixture
def pool(tmp_path: Path) -> KvBlocks:
    config = read_config(save_checkpoint(tmp_path, "Llama"))
    return KvBlocks(config, num_blocks=3, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_two_takers_never_share_a_row(pool: KvBlocks) -> None:
    first, second = pool.take(2), pool.take(1)
    assert len({*first.tolist(), *second.tolist()}) == 3 * BLOCK_ROWS
    assert pool.num_free == 0
    pool.give_back(first)
    assert pool.num_free == 2


def test_what_is_written_is_read_and_a_new_taker_finds_zeros(pool: KvBlocks) -> None:
    taken = pool.take(3)
    rows = torch.from_numpy(taken[:5])
    k, v = torch.randn(2, 5, 2, 6)
    # what a diverged adapter leaves behind
    k[0] = torch.nan
    pool.write(1, rows=rows, k_TGE=k, v_TGE=v)
    found = pool.read(1, rows=rows)
    assert torch.equal(found[0][1:], k[1:])
    assert torch.equal(found[1], v)
    assert not pool.read(0, rows=rows)[0].any()
    pool.give_back(taken)
    again = torch.from_numpy(pool.take(3))
    assert not torch.cat(pool.read(1, rows=again)).any()
