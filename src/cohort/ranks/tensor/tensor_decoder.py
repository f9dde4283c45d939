"""A decoder of which each rank computes a shard: the ordinary decoder with a shard's sizes, products and borders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from cohort.models.checkpoint.checkpoint_reading import read_fused
from cohort.models.checkpoint.stored_tensors import check_checkpoint, stored_tensors
from cohort.models.checkpoint_layout import FusedTensor, checkpoint_layout
from cohort.models.decoder import Decoder
from cohort.models.finite_weights import refusing_non_finite
from cohort.models.source import find_model
from cohort.models.weight_formats import PLAIN
from cohort.models.weights import freeze_weights
from cohort.ranks.tensor.base_shards import shard_config, shard_fused
from cohort.ranks.tensor.groups import RankGroup
from cohort.ranks.tensor.regions import Region
from cohort.ranks.tensor.vocabulary_head import VocabularyHead

__all__ = ["load_tensor_decoder"]


def load_tensor_decoder(
    name_or_path: str | Path,
    group: RankGroup,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Decoder:
    """Load the shard of this rank; all ranks of ``group`` run its passes together, on the same stream of tokens.

    A pass sums over ranks twice a layer, after attention and after the feed-forward block, and its gradient as often.
    Losses of :func:`~cohort.kernels.cross_entropy.linear_cross_entropy` divide the vocabulary. One whole tensor at a
    time is read. Weights are kept in the dtype they compute in.

    Raises:
        InputError: the ranks do not divide the model's heads or widths, or anything wrong with its files.
    """
    device, folder = torch.device(device), find_model(name_or_path)
    config = check_checkpoint(folder)
    local = shard_config(config, size=group.size)
    stored = stored_tensors(folder, config)
    whole = refusing_non_finite(read_fused(checkpoint_layout(config), stored, dtype=dtype, device=device), stored)
    own = {fused.name: fused for fused in checkpoint_layout(local)}
    heads: dict[str, Tensor] = {}

    def shards() -> Iterator[tuple[FusedTensor, Tensor]]:
        for fused, content in whole:
            assert isinstance(content, Tensor), "plain weights are read as tensors"
            if fused.name == "head":
                heads["head"] = content
                continue
            part = shard_fused(fused, content, rank=group.rank, size=group.size)
            if part is not None:
                yield own[fused.name], part

    tensors, products = freeze_weights(shards())
    table_VD = heads.get("head", tensors["embed"])
    rows = VocabularyHead(PLAIN.freeze(table_VD, None), group, vocab_size=config.vocab_size).rows
    # of a tied head a view: the token table is whole on every rank
    part_vD = table_VD[rows] if config.tie_word_embeddings else table_VD[rows].clone()
    products["head"] = VocabularyHead(PLAIN.freeze(part_vD, None), group, vocab_size=config.vocab_size)
    return Decoder(local, tensors=tensors, products=products, region=Region(group) if group.size > 1 else None)
