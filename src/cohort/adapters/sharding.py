"""What a tensor parallel rank holds of an adapter: pure slices of its rank rows, in any number of blocks at any degree.

The base is divided as Megatron divides it: q, k, v, gate and up by outputs (column-parallel), o and down by inputs
(row-parallel). A rank keeps the columns of its shard, and of the rank rows those that have entries there:

- plain LoRA (NFS, the case of one block): all rank rows; A of column-parallel and B of row-parallel linears whole;
- BD-LoRA of N blocks on M ranks: where M divides N, rank rows ``[j r/M, (j+1) r/M)``, which are N / M blocks of the
  rank's own; where N divides M, those of block ``j // (M / N)``;
- swapped BD-LoRA: all rank rows, at any degree: the factors that stay whole are N times smaller;
- blocks that do not fit the degree: as plain LoRA, zeros included.

In none of these does a rank need anything of another's: what ranks add is summed by the base's own all-reduce. What a
rank holds is an adapter of its shard of the base, so bank and kernels are those of one process.

Source: BD-LoRA, section 3, for N = M; the rest is derived (both other cases are left open there).

Shapes:  r total rank · D entries of a rank row · M ranks · j this rank · N blocks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_conversion import spec_with_blocks
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal, BlockFactor
from cohort.core.errors import CohortError

__all__ = [
    "AdapterShard",
    "LinearSlices",
    "Parallelism",
    "ShardingError",
    "join_rank_rows",
    "local_layout",
    "parallelism_of",
    "replicated_columns",
    "shard_adapter",
    "shard_slices",
]


class ShardingError(CohortError):
    """A linear or an adapter that cannot be divided over this number of ranks."""


class Parallelism(Enum):
    """How ranks divide a linear of the base."""

    COLUMN = "column"
    """By outputs."""
    ROW = "row"
    """By inputs; outputs are summed."""


def parallelism_of(module: str) -> Parallelism:
    """Return how a linear, by its full path, is divided.

    Raises:
        ShardingError: a linear of unknown place.
    """
    name = module.rsplit(".", 1)[-1]
    if name in COLUMN_PARALLEL:
        return Parallelism.COLUMN
    if name in ROW_PARALLEL:
        return Parallelism.ROW
    raise ShardingError(f"{module}: only {', '.join((*COLUMN_PARALLEL, *ROW_PARALLEL))} are divided over ranks")


@dataclass(frozen=True, kw_only=True)
class LinearSlices:
    """What a rank holds of the factors of one linear.

    Attributes:
        rows: Rank rows.
        ins: Columns of A.
        outs: Rows of B.
        nblocks: Blocks among the rank rows; 1 where both factors are dense or the zeros between blocks are kept.
    """

    rows: slice
    ins: slice
    outs: slice
    nblocks: int = 1


def shard_slices(
    module: str, shape: tuple[int, int], *, r: int, blocks: BlockDiagonal | None, rank: int, size: int
) -> LinearSlices:
    """Return what rank ``rank`` of ``size`` holds of an adapter of total rank ``r`` on one linear.

    Raises:
        ShardingError: ``size`` does not divide the width that is divided.
    """
    kind, (in_features, out_features) = parallelism_of(module), shape
    width = out_features if kind is Parallelism.COLUMN else in_features
    if width % size:
        side = "outputs" if kind is Parallelism.COLUMN else "inputs"
        raise ShardingError(f"{module} has {width} {side}, which {size} ranks do not divide; choose another degree")
    own, whole = slice(rank * width // size, (rank + 1) * width // size), slice(0, None)
    ins, outs = (whole, own) if kind is Parallelism.COLUMN else (own, whole)
    rows, nblocks = slice(0, r), 1
    if blocks is not None:
        # the factor whose columns the base divides: in its blocks each rank has rank rows of its own
        divided = BlockFactor.B if kind is Parallelism.COLUMN else BlockFactor.A
        factor, n = blocks.factor_of(module), blocks.nblocks
        if factor is divided and n % size == 0:
            rows, nblocks = slice(rank * r // size, (rank + 1) * r // size), n // size
        elif factor is divided and size % n == 0:
            block = rank // (size // n)
            rows = slice(block * r // n, (block + 1) * r // n)
        elif factor is not None and factor is not divided:
            nblocks = n
    return LinearSlices(rows=rows, ins=ins, outs=outs, nblocks=nblocks)


def local_layout(layout: AdapterLayout, *, rank: int, size: int) -> AdapterLayout:
    """Return the layout of a rank's shard of the linears; features of row-parallel inputs keep their numbers.

    Raises:
        ShardingError: ``size`` does not divide a width.
    """
    linears, first_features = {}, {}
    for name, (in_features, out_features) in layout.linears.items():
        found = shard_slices(name, (in_features, out_features), r=1, blocks=None, rank=rank, size=size)
        linears[name] = (_length(found.ins, in_features), _length(found.outs, out_features))
        if found.ins.start:
            first_features[name] = found.ins.start
    return AdapterLayout(linears, first_features=first_features)


@dataclass(frozen=True, kw_only=True)
class AdapterShard:
    """An adapter of a rank's shard of the base.

    Attributes:
        spec: With the rank of the shard and an alpha that keeps the scale; blocks where the shard has some.
        layout: Of the shard.
        weights_rD: Its rank rows.
        is_expanded: Whether blocks did not fit the degree and are kept as dense factors with zeros.
    """

    spec: AdapterSpec
    layout: AdapterLayout
    weights_rD: Tensor
    is_expanded: bool = False


def shard_adapter(
    layout: AdapterLayout, spec: AdapterSpec, weights_rD: Tensor, *, rank: int, size: int
) -> AdapterShard:
    """Return what rank ``rank`` of ``size`` serves or trains of an adapter, by the table above.

    Args:
        weights_rD: Whole rank rows, zeros outside of blocks included; moments of an optimizer are divided alike.

    Raises:
        ShardingError: ``size`` does not divide a width, or the adapter is DoRA, VeRA, PiSSA or OLoRA, or has patterns.
    """
    if spec.has_patterns or spec.has_frozen_rows or not spec.has_only_factors:
        what = "adapters with rank or alpha patterns, DoRA, VeRA, PiSSA or OLoRA"
        raise ShardingError(f"{what} are not divided over ranks")
    local, blocks = local_layout(layout, rank=rank, size=size), spec.use_bdlora
    found = _slices(layout, spec, rank=rank, size=size)
    num_rows = max(own.rows.stop - own.rows.start for own in found.values())
    rows_rD = weights_rD.new_zeros(num_rows, local.width)
    for name, own in found.items():
        theirs, ours, count = layout.columns[name], local.columns[name], own.rows.stop - own.rows.start
        rows_rD[:count, ours.a] = weights_rD[own.rows, theirs.a][:, own.ins]
        rows_rD[:count, ours.b] = weights_rD[own.rows, theirs.b][:, own.outs]
    kept = {own.nblocks for own in found.values()}
    rows = {own.rows.stop - own.rows.start for own in found.values()}
    # one number of blocks for all linears is a structure of the shard, which training needs; else zeros are as good
    local_blocks = None
    if blocks is not None and len(kept) == 1 == len(rows) and (n := kept.pop()) > 1:
        local_blocks = BlockDiagonal(
            nblocks=n,
            target_modules_bd_a=blocks.target_modules_bd_a,
            target_modules_bd_b=blocks.target_modules_bd_b,
            match_strict=blocks.match_strict,
        )
    fits = blocks is None or blocks.nblocks % size == 0 or size % blocks.nblocks == 0 or _is_swapped(blocks, layout)
    return AdapterShard(
        spec=spec_with_blocks(spec, local_blocks, r=num_rows), layout=local, weights_rD=rows_rD, is_expanded=not fits
    )


def join_rank_rows(layout: AdapterLayout, spec: AdapterSpec, parts: Mapping[int, Tensor], *, size: int) -> Tensor:
    """Return the whole rank rows [r, D] of what :func:`shard_adapter` gave each rank.

    What several ranks hold is taken from the first of them.
    """
    whole_rD = parts[0].new_zeros(spec.r, layout.width)
    for rank in reversed(range(size)):
        local = local_layout(layout, rank=rank, size=size)
        for name, own in _slices(layout, spec, rank=rank, size=size).items():
            theirs, ours, count = layout.columns[name], local.columns[name], own.rows.stop - own.rows.start
            for whole, part, within in ((theirs.a, ours.a, own.ins), (theirs.b, ours.b, own.outs)):
                columns = range(whole.start, whole.stop)[within]
                whole_rD[own.rows, columns.start : columns.stop] = parts[rank][:count, part]
    return whole_rD


def replicated_columns(layout: AdapterLayout, spec: AdapterSpec, *, size: int) -> Tensor:
    """Return bool [columns of a local rank row]: true where several ranks hold the same weights.

    Their gradients are summed over the ranks that hold them, and they count once in norms. Where N divides M and is
    smaller, ranks of one block share its weights too.

    Raises:
        ShardingError: ranks share some rank rows with part of the group only, which is served, not trained.
    """
    blocks, local = spec.use_bdlora, local_layout(layout, rank=0, size=size)
    mask_D = torch.zeros(local.width, dtype=torch.bool)
    for name, shape in layout.linears.items():
        kind, columns = parallelism_of(name), local.columns[name]
        divided = BlockFactor.B if kind is Parallelism.COLUMN else BlockFactor.A
        factor = None if blocks is None else blocks.factor_of(name)
        own = shard_slices(name, shape, r=spec.r, blocks=blocks, rank=0, size=size)
        if factor is divided and blocks is not None and own.rows != slice(0, spec.r):
            if blocks.nblocks % size:
                raise ShardingError(
                    f"training {blocks.nblocks} blocks on {size} ranks: blocks are shared by some ranks only; train on "
                    f"a divisor of {blocks.nblocks} ranks"
                )
            continue
        if size > 1:
            mask_D[columns.a if kind is Parallelism.COLUMN else columns.b] = True
    return mask_D


def _slices(layout: AdapterLayout, spec: AdapterSpec, *, rank: int, size: int) -> dict[str, LinearSlices]:
    return {
        name: shard_slices(name, shape, r=spec.r, blocks=spec.use_bdlora, rank=rank, size=size)
        for name, shape in layout.linears.items()
    }


def _is_swapped(blocks: BlockDiagonal, layout: AdapterLayout) -> bool:
    kinds = {Parallelism.COLUMN: BlockFactor.A, Parallelism.ROW: BlockFactor.B}
    return all(blocks.factor_of(name) in (None, kinds[parallelism_of(name)]) for name in layout.linears)


def _length(part: slice, whole: int) -> int:
    return len(range(whole)[part])
