"""What a tensor parallel rank holds of the base model: pure slices of its fused tensors.

Heads, key-value heads and the feed-forward width are divided; q, k, v, gate and up keep their fused forms, each with
the rank's own rows. o and down keep columns, their bias on rank 0. Norms and the token table are whole on every rank,
while the head keeps rows of the vocabulary.

Source: Megatron-LM (Shoeybi et al. 2019), section 3.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.models.checkpoint_layout import FusedTensor
from cohort.models.config import DecoderConfig

__all__ = ["check_degree", "shard_config", "shard_fused", "vocabulary_rows"]


def check_degree(config: DecoderConfig, size: int) -> None:
    """Check that ``size`` ranks can divide a model.

    Raises:
        InputError: they do not divide its heads or widths.
    """
    if size > 1 and (whole := _kept_whole(config)) is not None:
        raise InputError(
            Problem(
                where=Place(text="tensor parallelism"),
                found=f"{size} ranks for a model whose {whole[0]}",
                allowed=f"1: {whole[1]}",
                hint="Write strategy: replicas, adapter_parallel or pipeline.",
            )
        )
    counts = {
        "attention heads": config.num_heads,
        "key-value heads": config.num_kv_heads,
        "feed-forward columns": config.intermediate_size,
    }
    odd = [f"{count} {name}" for name, count in counts.items() if count % size]
    if size < 1 or odd:
        degrees = [n for n in range(1, config.num_kv_heads + 1) if all(count % n == 0 for count in counts.values())]
        raise InputError(
            Problem(
                where=Place(text="tensor parallelism"),
                found=f"{size} ranks for a model with {', '.join(odd) or 'at least one head'}",
                allowed=f"a number of ranks that divides them: {', '.join(map(str, degrees))}",
                hint="Choose one of these.",
            )
        )


def _kept_whole(config: DecoderConfig) -> tuple[str, str] | None:
    """Return what of a model cannot be divided among ranks, and why; None where all can."""
    no_range = "a rank's part of it is no range of its rows"
    if config.mixture is not None:
        return "layers have experts", "experts are whole on each GPU"
    if config.has_fused_qkv:
        return "q, k and v are one linear, adapted as a whole", no_range
    if config.has_fused_gate_up:
        return "gate and up are one linear, adapted as a whole", no_range
    if config.norms_all_heads:
        return "queries are normalised over all heads", "a rank has some of the heads"
    return None


def shard_config(config: DecoderConfig, *, size: int) -> DecoderConfig:
    """Return the sizes of one rank's shard; the residual stream and the vocabulary stay whole.

    Raises:
        InputError: ``size`` ranks do not divide the model.
    """
    check_degree(config, size)
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=config.num_kv_heads // size,
        intermediate_size=config.intermediate_size // size,
    )


def shard_fused(fused: FusedTensor, whole: Tensor, *, rank: int, size: int) -> Tensor | None:
    """Return a rank's part of a fused tensor, in memory of its own; None where other ranks alone have it."""
    name = fused.name
    if name.endswith((".qkv.weight", ".gate_up.weight", ".qkv.bias", ".gate_up.bias")):
        parts, start = [], 0
        for piece in fused.pieces:
            count = piece.shape[0] // size
            parts.append(whole[start + rank * count : start + (rank + 1) * count])
            start += piece.shape[0]
        return torch.cat(parts)
    if name.endswith((".output.weight", ".down.weight")):
        count = whole.shape[1] // size
        return whole[:, rank * count : (rank + 1) * count].clone()
    if name.endswith((".output.bias", ".down.bias")):
        # outputs are summed over ranks: a bias on each would count several times
        return whole if rank == 0 else None
    return whole


def vocabulary_rows(vocab_size: int, *, rank: int, size: int) -> slice:
    """Return the rows of the head that a rank has; the last ranks have fewer where the division has a rest."""
    count = -(-vocab_size // size)
    return slice(min(rank * count, vocab_size), min((rank + 1) * count, vocab_size))
