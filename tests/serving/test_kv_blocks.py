"""The pool of keys and values: rows are written, read, zeroed, stored and restored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.models.config_file import read_config
from cohort.serving.kv_blocks import BLOCK_ROWS, NULL_BLOCK, KvBlocks, blocks_for, rows_of
from tests.models.fixtures.tiny_checkpoints import save_checkpoint


@pytest.fixture
def pool(tmp_path: Path) -> KvBlocks:
    config = read_config(save_checkpoint(tmp_path, "Llama"))
    return KvBlocks(config, num_blocks=3, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_what_is_written_is_read_and_a_new_owner_finds_zeros(pool: KvBlocks) -> None:
    rows = torch.from_numpy(rows_of([3, 1])[:20])
    k, v = torch.randn(2, 20, 2, 6)
    # what a diverged adapter leaves behind
    k[0] = torch.nan
    pool.write(1, rows=rows, k_TGE=k, v_TGE=v)
    found = pool.read(1, rows=rows)
    assert torch.equal(found[0][1:], k[1:])
    assert torch.equal(found[1], v)
    assert not pool.read(0, rows=rows)[0].any()
    pool.zero([3, 1])
    assert not torch.cat(pool.read(1, rows=rows)).any()


def test_stored_blocks_come_back_elsewhere(pool: KvBlocks) -> None:
    rows = torch.from_numpy(rows_of([2]))
    k, v = torch.randn(2, BLOCK_ROWS, 2, 6)
    pool.write(0, rows=rows, k_TGE=k, v_TGE=v)
    stored = pool.store([2])
    pool.zero([2])
    pool.restore(stored, [3])
    found = pool.read(0, rows=torch.from_numpy(rows_of([3])))
    assert torch.equal(found[0], k)
    assert torch.equal(found[1], v)


def test_the_null_block_is_one_more_than_asked_for(pool: KvBlocks) -> None:
    assert pool.keys.shape[1] == 4 * BLOCK_ROWS
    assert rows_of([NULL_BLOCK]).tolist() == list(range(BLOCK_ROWS))
