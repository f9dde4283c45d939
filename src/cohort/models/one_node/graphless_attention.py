"""Causal attention of a packed stream on a CPU in two calls, forward and backward, for a node that is its own graph.

They call what autograd would call for :class:`~cohort.models.attention.PackedAttention`, in the same order, so all bits
are the same: torch's fused attention over each bucket of sequences, and its gradient.

Shapes:  T rows of the stream · P rows of the padded buckets · B sequences · L rounded length
         H query heads · G key-value heads · E head width
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from cohort.models.attention import PackedAttention
from cohort.models.attention_buckets import BucketLayout
from cohort.models.config import AttentionRule

__all__ = ["attention_backward", "attention_forward", "attends_without_graph"]

# Tensors that are kept of each piece: queries, keys, values, output and the scores' normalisers.
_KEPT = 5


def attends_without_graph(
    attention: PackedAttention, *, rule: AttentionRule, heads: tuple[int, int], width: int, dtype: torch.dtype
) -> bool:
    """Return whether these calls compute what ``attention.attend`` computes on a CPU."""
    sees_all = rule.window is None or attention.num_positions <= rule.window
    is_plain = type(attention) is PackedAttention and rule.cap is None and sees_all and attention.num_positions > 0
    return is_plain and _is_fused(*heads, width, dtype, torch.backends.cuda.flash_sdp_enabled())


@functools.cache
def _is_fused(num_heads: int, num_kv_heads: int, width: int, dtype: torch.dtype, enabled: bool) -> bool:  # noqa: FBT001 - a key
    if not enabled:
        return False
    q, k = (torch.empty(1, heads, 16, width, dtype=dtype) for heads in (num_heads, num_kv_heads))
    chosen = torch._fused_sdp_choice(q, k, k, is_causal=True, enable_gqa=num_heads != num_kv_heads)
    return bool(chosen == SDPBackend.FLASH_ATTENTION.value)


def attention_forward(
    layout: BucketLayout, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule
) -> tuple[Tensor, list[Tensor]]:
    """Return o [T, H, E] and what the backward pass reads; outside autograd."""
    kept: list[Tensor] = []
    padded = (_padded(layout, rows) for rows in (q_THE, k_TGE, v_TGE))
    outputs = []
    for q, k, v in zip(*(_pieces(layout, rows) for rows in padded), strict=True):
        o, normalisers = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, attn_mask=None, scale=rule.scale
        )
        outputs.append(o.transpose(1, 2).flatten(0, 1))
        kept += (q, k, v, o, normalisers)
    return _rows(layout, outputs).contiguous(), kept


def attention_backward(
    layout: BucketLayout, do_THE: Tensor, kept: Sequence[Tensor], *, rule: AttentionRule
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq [T, H, E], dk and dv [T, G, E]."""
    do_PHE = _padded(layout, do_THE)
    if not layout.is_stream:
        do_PHE.index_fill_(0, layout.padding, 0)
    found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    by_piece = (kept[start : start + _KEPT] for start in range(0, len(kept), _KEPT))
    for do, (q, k, v, o, normalisers) in zip(_pieces(layout, do_PHE), by_piece, strict=True):
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, o, normalisers, 0.0, True, attn_mask=None, scale=rule.scale
        )
        for of_all, gradient in zip(found, gradients, strict=True):
            of_all.append(gradient.transpose(1, 2).flatten(0, 1))
    dq_THE, dk_TGE, dv_TGE = (_rows(layout, of_all) for of_all in found)
    return dq_THE, dk_TGE, dv_TGE


def _pieces(layout: BucketLayout, x_PXE: Tensor) -> Iterator[Tensor]:
    """Yield the sequences of each call, [B, X, L, E]."""
    buckets = (
        rows.unflatten(0, (bucket.count, bucket.length))
        for bucket, rows in zip(layout.buckets, layout.by_bucket(x_PXE), strict=True)
    )
    # as PackedAttention does: threads would share out the heads of all sequences
    pieces = chain.from_iterable(rows.split(1) for rows in buckets) if torch.get_num_threads() > 1 else buckets
    return (rows.transpose(1, 2) for rows in pieces)


def _padded(layout: BucketLayout, x_TXE: Tensor) -> Tensor:
    # a product's bits may follow from strides, so rows that stay where they are lie as picked ones do
    return x_TXE.contiguous() if layout.is_stream else layout.pick_padded(x_TXE)


def _rows(layout: BucketLayout, pieces: Sequence[Tensor]) -> Tensor:
    x_PXE = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
    return x_PXE if layout.is_stream else layout.pick_rows(x_PXE)
