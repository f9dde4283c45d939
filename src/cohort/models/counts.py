"""Parameters, floating-point operations and bytes of a decoder, by arithmetic on its sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cohort.models.attention import CAPPED_QUERIES
from cohort.models.checkpoint_layout import checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.weight_formats import PLAIN, format_named

__all__ = ["ModelCounts", "activation_bytes_per_token", "count_model", "recomputed_bytes_per_token", "weight_bytes"]


@dataclass(frozen=True, kw_only=True)
class ModelCounts:
    """Costs of a frozen decoder. A multiply-add is 2 FLOPs; norms, activations and the embedding look-up are left out.

    Attributes:
        parameters: All weights, a tied head counted once.
        linear_parameters: Weights of the layers' linears, experts left out.
        head_parameters: Weights of the product to logits, tied or not.
        linear_flops_per_token: Forward FLOPs per token of the layers' linears, and of the experts that it passes.
        head_flops_per_token: Forward FLOPs per token whose logits are needed.
        attention_flops_per_pair: Forward FLOPs per (query, visible key) pair, all layers.
    """

    parameters: int
    linear_parameters: int
    head_parameters: int
    linear_flops_per_token: int
    head_flops_per_token: int
    attention_flops_per_pair: int


def count_model(config: DecoderConfig) -> ModelCounts:
    layout = checkpoint_layout(config)
    linear = sum(math.prod(fused.shape) for fused in layout if fused.is_linear)
    table = config.vocab_size * config.hidden_size
    return ModelCounts(
        parameters=sum(math.prod(fused.shape) for fused in layout),
        linear_parameters=linear,
        head_parameters=table,
        linear_flops_per_token=2 * _passed_weights(config, linear=linear),
        head_flops_per_token=2 * table,
        # scores and their product with the values
        attention_flops_per_pair=4 * config.query_width * config.num_layers,
    )


def _passed_weights(config: DecoderConfig, *, linear: int) -> int:
    """Return the weights of linears, routers and experts that one token passes; ``linear``: all of the linears'."""
    if config.bridged is not None:
        return config.bridged.passed_weights
    if config.mixture is None:
        return linear
    hidden, own = config.hidden_size, config.mixture
    block = hidden * (own.num_experts + 3 * own.experts_per_token * own.intermediate_size)
    return linear + block * sum(config.is_sparse(layer) for layer in range(config.num_layers))


def weight_bytes(
    config: DecoderConfig, *, dtype: torch.dtype, weight_format: str = PLAIN.name, room_bytes: int = 0
) -> int:
    """Return the bytes of all weights of a model that computes in ``dtype``, as the format keeps them.

    Args:
        room_bytes: What the model may take of a GPU, where the format keeps a second copy if it fits; 0 on a CPU.
    """
    kept, layout = format_named(weight_format), checkpoint_layout(config)
    # by checkpoint tensor, since a format may keep each in blocks of its own
    linears = sum(
        kept.tensor_bytes(piece.shape, dtype, is_linear=True)
        for fused in layout
        if fused.is_linear
        for piece in fused.pieces
    )
    others = sum(kept.tensor_bytes(fused.shape, dtype, is_linear=False) for fused in layout if not fused.is_linear)
    return linears + others + kept.copy_bytes(linears, room_bytes)


def activation_bytes_per_token(config: DecoderConfig, *, bytes_per_value: int, padding: float = 1.6) -> int:
    """Estimate the bytes that one token of a training pass keeps until its backward pass, the loss head left out.

    Each layer keeps the residual stream twice, both norms' results, the attention's operands and result, the fused gate
    and up, and their product; an estimate from above, since kernels may recompute some of these.

    Args:
        padding: Rows of padded attention over rows of the stream; 1.6 is GSM8K (mean 158 tokens) padded to 256, as
            without Triton. The ragged kernels keep less: the estimate stays from above.
    """
    ends = 3 * config.hidden_size + _capped_scores(config)
    return bytes_per_value * (config.num_layers * _values_of_a_layer(config, padding=padding) + ends)


def recomputed_bytes_per_token(config: DecoderConfig, *, bytes_per_value: int, padding: float = 1.6) -> int:
    """Estimate the same for a pass whose layers are recomputed: the stream that enters each, and one layer at work.

    The layer counts twice, what it keeps and the gradients of that: an estimate from above as well. No pass takes more
    than one that keeps everything.
    """
    streams = (config.num_layers + 3) * config.hidden_size
    at_work = 2 * _values_of_a_layer(config, padding=padding) + _capped_scores(config)
    recomputed = bytes_per_value * (streams + at_work)
    return min(recomputed, activation_bytes_per_token(config, bytes_per_value=bytes_per_value, padding=padding))


def _values_of_a_layer(config: DecoderConfig, *, padding: float) -> int:
    if config.bridged is not None:
        # twice for what stands between the linears: norms, activations, rotated copies and both sides of attention
        return 2 * (config.bridged.values_per_token // config.num_layers) + 8 * config.hidden_size
    heads = config.query_width + 2 * config.kv_width + config.query_width
    # a norm after a block keeps what the block gave
    streams = (4 + config.norms.num_after) * config.hidden_size
    return streams + config.query_width + round(padding * heads) + config.mlp_values


def _capped_scores(config: DecoderConfig) -> int:
    """Values of the capped scores of one layer at work, a token: they exist some queries at a time."""
    # scores, their tanh, both weights (float32 is two 16-bit values) and the gradients of these
    return 0 if config.attention_cap is None else 8 * CAPPED_QUERIES * config.num_heads
