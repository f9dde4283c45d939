"""Causal attention over packed streams: one sequence never reads another's rows.

Shapes:  T rows of the stream · P rows of the padded buckets · B sequences of a bucket · L rounded length
         H query heads · G key-value heads · E head width
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cohort.core.errors import ShapeError
from cohort.kernels.attention import AttentionTiles, RecordedTiles, packed_attention
from cohort.kernels.backend import Backend, choose_backend
from cohort.kernels.packed_linear import PaddedRows
from cohort.models.attention_buckets import BucketLayout
from cohort.models.config import AttentionRule

__all__ = [
    "AttentionContext",
    "PackedAttention",
    "RecordedAttention",
    "causal_attention",
    "masked_attention",
]

# Queries of a sequence whose capped scores exist at a time: no fused kernel computes those.
CAPPED_QUERIES = 256


class AttentionContext(Protocol):
    """How the rows of one pass attend: packed training, prefill or cached decoding."""

    @property
    def num_positions(self) -> int:
        """One more than the largest position of the pass, known on the host."""
        ...

    def attend(self, layer_index: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule) -> Tensor:
        """Return o [T, H, E]; rows of no sequence give zeros."""
        ...


class PackedAttention:
    """Causal attention within each sequence of a packed stream.

    With Triton on a GPU the ragged kernels of :mod:`cohort.kernels.attention` run over the stream itself, where they
    suit the layer's rule. Elsewhere sequences of equal rounded length form a bucket, one batched call each. A
    sequence's output and gradient bits therefore depend on its own rows and length only, never on its neighbours or its
    place (on a CPU at a fixed thread count), and a NaN stays in its own sequence.
    """

    def __init__(self, sequence_offsets: tuple[int, ...]) -> None:
        """Take row offsets ``(0, ..., end)`` of the sequences; rows from ``end`` on belong to none."""
        if not sequence_offsets or sequence_offsets[0] != 0:
            raise ShapeError(f"sequence offsets must start at 0, got {sequence_offsets[:4]}")
        self._lengths = tuple(stop - start for start, stop in pairwise(sequence_offsets))
        if min(self._lengths, default=0) < 0:
            raise ShapeError("sequence offsets must never decrease")
        self._offsets = sequence_offsets
        self._layouts: dict[tuple[int, torch.device], BucketLayout] = {}
        self._tiles: dict[torch.device, AttentionTiles] = {}

    @property
    def num_positions(self) -> int:
        return max(self._lengths, default=0)

    @property
    def sequence_offsets(self) -> tuple[int, ...]:
        """Row offsets of the sequences, and where the last ends."""
        return self._offsets

    def attend(
        self,
        layer_index: int,
        q_THE: Tensor,
        k_TGE: Tensor,
        v_TGE: Tensor,
        *,
        rule: AttentionRule,
        room: PaddedRows | None = None,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        """Return o [T, H, E]; zeros in the rows of no sequence. All layers attend alike.

        With Triton's kernels o is written into the rows of ``room``, [T, H * E], where the next linear asks for it.

        Args:
            sinks_H: A score of each head that takes its share of the weights and gives no value. With sinks, and where
                values have another width than keys, plain torch attends on a GPU as well.

        Raises:
            ShapeError: the stream is shorter than the sequences, or there is room and no kernel that writes there.
        """
        del layer_index
        suits_kernels = rule.suits_kernels and sinks_H is None and k_TGE.shape == v_TGE.shape
        if suits_kernels and choose_backend(q_THE) is Backend.TRITON:
            tiles = self._tiles_on(q_THE.device)
            return packed_attention(q_THE, k_TGE, v_TGE, tiles=tiles, window=rule.window, room=room)
        if room is not None:
            raise ShapeError("only Triton's kernels write attention's output into the next linear's room; give none")
        layout = self.layout(q_THE.shape[0], q_THE.device)
        outputs, (q_PHE, k_PGE, v_PGE) = [], map(layout.gather, (q_THE, k_TGE, v_TGE))
        for bucket, *own in zip(layout.buckets, *map(layout.by_bucket, (q_PHE, k_PGE, v_PGE)), strict=True):
            q, k, v = (rows.unflatten(0, (bucket.count, bucket.length)) for rows in own)
            outputs.append(causal_attention(q, k, v, rule=rule, sinks_H=sinks_H).flatten(0, 1))
        nothing_PHE = q_PHE[..., :1].expand(-1, -1, v_PGE.shape[2])
        o_PHE = nothing_PHE if not outputs else outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return layout.scatter(o_PHE)

    def _tiles_on(self, device: torch.device) -> AttentionTiles:
        if device not in self._tiles:
            self._tiles[device] = AttentionTiles(self._offsets, device=device)
        return self._tiles[device]

    def layout(self, num_rows: int, device: torch.device) -> BucketLayout:
        """Return where the rows of a stream of ``num_rows`` are in the buckets.

        Raises:
            ShapeError: the stream is shorter than the sequences.
        """
        key = (num_rows, device)
        if key not in self._layouts:
            if num_rows < self._offsets[-1]:
                raise ShapeError(f"the stream has {num_rows} rows but its sequences end at {self._offsets[-1]}")
            self._layouts[key] = BucketLayout.build(self._offsets, num_rows=num_rows, device=device)
        return self._layouts[key]


class RecordedAttention(PackedAttention):
    """Packed attention whose tiles a CUDA graph reads from the device; for rules that suit Triton's kernels alone."""

    def __init__(self, tiles: RecordedTiles, *, num_positions: int) -> None:
        """Attend by ``tiles``; ``num_positions`` bounds the length of a sequence."""
        super().__init__((0,))
        self._recorded, self._num_positions = tiles, num_positions

    @property
    def num_positions(self) -> int:
        return self._num_positions

    def _tiles_on(self, device: torch.device) -> AttentionTiles:
        del device
        return self._recorded


def causal_attention(
    q_BLHE: Tensor, k_BLGE: Tensor, v_BLGE: Tensor, *, rule: AttentionRule, sinks_H: Tensor | None = None
) -> Tensor:
    """Return o [B, L, H, E] of sequences of equal length."""
    length, window = q_BLHE.shape[1], rule.window
    if sinks_H is not None:
        return _with_sinks(q_BLHE, k_BLGE, v_BLGE, sinks_H, rule=rule)
    if rule.cap is not None:
        return _capped_causal(q_BLHE, k_BLGE, v_BLGE, rule=rule)
    if window is None or length <= window:
        return _fused(q_BLHE, k_BLGE, v_BLGE, rule=rule, visible=None)
    visible = torch.ones(length, length, dtype=torch.bool, device=q_BLHE.device).tril().triu(1 - window)
    return masked_attention(q_BLHE, k_BLGE, v_BLGE, visible=visible, rule=rule)


def _with_sinks(q_BLHE: Tensor, k_BLGE: Tensor, v_BLGE: Tensor, sinks_H: Tensor, *, rule: AttentionRule) -> Tensor:
    """Return o [B, L, H, E] where each head has a sink: a key and a value of zeros, its score that of the mask."""
    assert rule.cap is None, "no architecture has both sinks and capped scores"
    length, num_heads = q_BLHE.shape[1:3]
    visible = torch.ones(length, length, dtype=torch.bool, device=q_BLHE.device).tril()
    if rule.window is not None:
        visible = visible.triu(1 - rule.window)
    scores_HLX = q_BLHE.new_zeros(num_heads, length, length + 1)
    scores_HLX[:, :, :length].masked_fill_(~visible, -torch.inf)
    scores_HLX[:, :, length] = sinks_H[:, None].to(q_BLHE.dtype)
    k_BXGE, v_BXGE = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k_BLGE, v_BLGE))
    return masked_attention(q_BLHE, k_BXGE, v_BXGE, visible=scores_HLX, rule=rule)


def masked_attention(q_BQHE: Tensor, k_BLGE: Tensor, v_BLGE: Tensor, *, visible: Tensor, rule: AttentionRule) -> Tensor:
    """Return o [B, Q, H, E] where query i sees key j if ``visible`` (broadcast to [B, H, Q, L]) is True.

    Without a cap ``visible`` may also be what is added to the scores, in their dtype: 0 or minus infinity. The rule's
    window is the caller's to put into it.
    """
    if rule.cap is not None:
        return _capped(q_BQHE, k_BLGE, v_BLGE, visible, rule)
    if q_BQHE.is_cuda and q_BQHE.shape[2] != k_BLGE.shape[2]:
        # with a mask, grouped heads have no fused CUDA kernel
        repeats = q_BQHE.shape[2] // k_BLGE.shape[2]
        k_BLGE, v_BLGE = (x.repeat_interleave(repeats, dim=2) for x in (k_BLGE, v_BLGE))
    return _fused(q_BQHE, k_BLGE, v_BLGE, rule=rule, visible=visible)


def _fused(q_BQHE: Tensor, k_BLGE: Tensor, v_BLGE: Tensor, *, rule: AttentionRule, visible: Tensor | None) -> Tensor:
    """Return torch's own attention, causal without a mask."""
    if len(q_BQHE) > 1 and not q_BQHE.is_cuda and torch.get_num_threads() > 1:
        # threads share out the heads of all sequences, and on some CPUs sums depend on which of them a thread takes
        masks = visible.split(1) if visible is not None and visible.dim() == 4 and len(visible) > 1 else None
        parts = zip(q_BQHE.split(1), k_BLGE.split(1), v_BLGE.split(1), masks or [visible] * len(q_BQHE), strict=True)
        return torch.cat([_fused(q, k, v, rule=rule, visible=mask) for q, k, v, mask in parts])
    q, k, v = (x.transpose(1, 2) for x in (q_BQHE, k_BLGE, v_BLGE))
    o = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=visible,
        is_causal=visible is None,
        enable_gqa=q_BQHE.shape[2] != k_BLGE.shape[2],
        scale=rule.scale,
    )
    return o.transpose(1, 2)


def _capped_causal(q_BLHE: Tensor, k_BLGE: Tensor, v_BLGE: Tensor, *, rule: AttentionRule) -> Tensor:
    """Return o of capped scores, in blocks of queries; their scores are recomputed in the backward pass."""
    length = q_BLHE.shape[1]
    outputs = []
    for start in range(0, length, CAPPED_QUERIES):
        stop = min(start + CAPPED_QUERIES, length)
        first = 0 if rule.window is None else max(0, start + 1 - rule.window)
        queries = torch.arange(start, stop, device=q_BLHE.device)[:, None]
        keys = torch.arange(first, stop, device=q_BLHE.device)
        visible = keys <= queries
        if rule.window is not None:
            visible &= keys > queries - rule.window
        operands = (q_BLHE[:, start:stop], k_BLGE[:, first:stop], v_BLGE[:, first:stop], visible, rule)
        outputs.append(checkpoint(_capped, *operands, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs, dim=1)


def _capped(q_BQHE: Tensor, k_BLGE: Tensor, v_BLGE: Tensor, visible: Tensor, rule: AttentionRule) -> Tensor:
    """Return o [B, Q, H, E] with soft-capped scores, in plain torch."""
    # one sequence at a time: a batched product's bits depend on how many there are
    by_sequence = visible if visible.dim() == 4 else [visible] * len(q_BQHE)
    operands = zip(q_BQHE, k_BLGE, v_BLGE, by_sequence, strict=True)
    return torch.stack([_capped_sequence(q, k, v, own, rule) for q, k, v, own in operands])


def _capped_sequence(q_QHE: Tensor, k_LGE: Tensor, v_LGE: Tensor, visible: Tensor, rule: AttentionRule) -> Tensor:
    assert rule.cap is not None, "there are kernels for scores without a cap"
    num_queries, num_heads, width = q_QHE.shape
    scale = width**-0.5 if rule.scale is None else rule.scale
    # the query heads that share a key head stand one below the other, so that keys and values need no copies
    q_GXE = q_QHE.transpose(0, 1).reshape(k_LGE.shape[1], -1, width)
    scores_GXL = q_GXE @ k_LGE.permute(1, 2, 0) * scale
    scores_HQL = (rule.cap * torch.tanh(scores_GXL / rule.cap)).view(num_heads, num_queries, -1)
    working = torch.promote_types(q_QHE.dtype, torch.float32)
    weights_HQL = scores_HQL.masked_fill(~visible, -torch.inf).softmax(dim=-1, dtype=working).to(q_QHE.dtype)
    o_GXE = weights_HQL.view(scores_GXL.shape) @ v_LGE.transpose(0, 1)
    return o_GXE.view(num_heads, num_queries, width).transpose(0, 1)
