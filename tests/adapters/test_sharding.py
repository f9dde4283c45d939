"""What ranks hold of an adapter: the table's sizes, sums equal to the whole, joined parts equal to what was divided."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.sharding import (
    Parallelism,
    ShardingError,
    join_rank_rows,
    local_layout,
    parallelism_of,
    replicated_columns,
    shard_adapter,
    shard_slices,
)
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal
from cohort.adapters.variants.block_factors import outside_blocks

LAYOUT = AdapterLayout({"l.q_proj": (16, 24), "l.k_proj": (16, 8), "l.o_proj": (24, 16), "l.down_proj": (16, 16)})
DEGREES = (1, 2, 4, 8)


def blocks_of(kind: str, nblocks: int) -> BlockDiagonal | None:
    if nblocks == 1:
        return None
    lists = (COLUMN_PARALLEL, ROW_PARALLEL) if kind == "swapped" else (ROW_PARALLEL, COLUMN_PARALLEL)
    return BlockDiagonal(nblocks=nblocks, target_modules_bd_a=lists[0], target_modules_bd_b=lists[1])


def adapter(kind: str, nblocks: int, *, r: int = 8) -> tuple[AdapterSpec, Tensor]:
    spec = AdapterSpec(r=r, lora_alpha=12.0, use_bdlora=blocks_of(kind, nblocks))
    rows = torch.randn(r, LAYOUT.width, dtype=torch.float64, generator=torch.Generator().manual_seed(nblocks))
    if spec.use_bdlora is not None:
        rows[outside_blocks(LAYOUT, spec.use_bdlora).repeat_interleave(r // nblocks, dim=0)] = 0.0
    return spec, rows


def delta(layout: AdapterLayout, spec: AdapterSpec, rows: Tensor, name: str) -> Tensor:
    columns = layout.columns[name]
    return spec.scale * rows[:, columns.b].T @ rows[:, columns.a]


@pytest.mark.parametrize(("kind", "nblocks", "size"), list(itertools.product(("bd", "swapped"), DEGREES, (1, 2, 4))))
def test_shards_give_the_whole_product_without_an_exchange(kind: str, nblocks: int, size: int) -> None:
    spec, rows = adapter(kind, nblocks)
    shards = [shard_adapter(LAYOUT, spec, rows, rank=rank, size=size) for rank in range(size)]
    for name in LAYOUT.linears:
        # column-parallel outputs lie next to each other; row-parallel inputs too, and the base sums the outputs
        dim = 0 if parallelism_of(name) is Parallelism.COLUMN else 1
        parts = [delta(shard.layout, shard.spec, shard.weights_rD, name) for shard in shards]
        torch.testing.assert_close(torch.cat(parts, dim=dim), delta(LAYOUT, spec, rows, name), rtol=0, atol=1e-12)
    by_rank = {rank: shard.weights_rD for rank, shard in enumerate(shards)}
    assert torch.equal(join_rank_rows(LAYOUT, spec, by_rank, size=size), rows)
    assert not any(shard.is_expanded for shard in shards)


@pytest.mark.parametrize(
    ("kind", "nblocks", "size", "rank_rows", "nblocks_there"),
    [
        ("bd", 1, 4, 8, 1),  # NFS
        ("bd", 4, 4, 2, 1),  # the paper
        ("bd", 8, 4, 2, 2),  # two blocks a rank
        ("bd", 2, 4, 4, 1),  # two ranks a block
        ("swapped", 4, 4, 8, 4),
        ("swapped", 2, 4, 8, 2),
    ],
)
def test_ranks_hold_what_the_table_says(kind: str, nblocks: int, size: int, rank_rows: int, nblocks_there: int) -> None:
    spec, rows = adapter(kind, nblocks)
    shard = shard_adapter(LAYOUT, spec, rows, rank=1, size=size)
    assert shard.spec.r == shard.weights_rD.shape[0] == rank_rows
    assert (shard.spec.use_bdlora.nblocks if shard.spec.use_bdlora else 1) == nblocks_there
    assert shard.spec.scale == pytest.approx(spec.scale)
    found = shard_slices("l.q_proj", (16, 24), r=8, blocks=spec.use_bdlora, rank=1, size=size)
    assert (found.outs, found.ins) == (slice(6, 12), slice(0, None))
    if kind == "bd" and nblocks == 2:
        # block 0 belongs to ranks 0 and 1
        assert found.rows == slice(0, 4)


def test_degrees_that_do_not_fit_are_expanded_or_refused() -> None:
    spec, rows = adapter("bd", 2, r=6)
    wide = AdapterLayout({"l.q_proj": (6, 12), "l.o_proj": (12, 6)})
    rows = torch.randn(6, wide.width, dtype=torch.float64)
    rows[outside_blocks(wide, BlockDiagonal(nblocks=2)).repeat_interleave(3, dim=0)] = 0.0
    shards = [shard_adapter(wide, spec, rows, rank=rank, size=3) for rank in range(3)]
    assert all(shard.is_expanded and shard.spec.r == 6 and shard.spec.use_bdlora is None for shard in shards)
    parts = [delta(shard.layout, shard.spec, shard.weights_rD, "l.q_proj") for shard in shards]
    torch.testing.assert_close(torch.cat(parts), delta(wide, spec, rows, "l.q_proj"))
    with pytest.raises(ShardingError, match=r"l\.k_proj has 8 outputs, which 3 ranks do not divide"):
        shard_adapter(LAYOUT, *adapter("bd", 1), rank=0, size=3)
    with pytest.raises(ShardingError, match="only q_proj"):
        local_layout(AdapterLayout({"l.router": (4, 4)}), rank=0, size=2)


def test_what_is_trained_on_several_ranks_at_once() -> None:
    local = local_layout(LAYOUT, rank=0, size=4)
    plain = replicated_columns(LAYOUT, adapter("bd", 1)[0], size=4)
    expected = torch.zeros(local.width, dtype=torch.bool)
    for name, columns in local.columns.items():
        expected[columns.a if parallelism_of(name) is Parallelism.COLUMN else columns.b] = True
    assert torch.equal(plain, expected)
    # blocks are a rank's own, whole or several of them
    assert not replicated_columns(LAYOUT, adapter("bd", 4)[0], size=4).any()
    assert not replicated_columns(LAYOUT, adapter("bd", 8)[0], size=4).any()
    assert torch.equal(replicated_columns(LAYOUT, adapter("swapped", 2)[0], size=4), expected)
    with pytest.raises(ShardingError, match="a divisor of 2 ranks"):
        replicated_columns(LAYOUT, adapter("bd", 2)[0], size=4)


def test_features_of_row_parallel_inputs_keep_their_numbers() -> None:
    assert local_layout(LAYOUT, rank=1, size=2).first_features == {"l.o_proj": 12, "l.down_proj": 8}
