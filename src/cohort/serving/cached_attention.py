"""Attention that remembers: a prefill that stores what it saw, and a decode step that reads it.

Shapes:  T rows of the stream · B sequences of a bucket · L rounded key length · H, G heads · E head width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cohort.models.attention import PackedAttention, masked_attention
from cohort.models.config import AttentionRule
from cohort.serving.kv_blocks import KvBlocks

__all__ = ["CachedRows", "DecodeAttention", "PrefillAttention"]

# A sequence's keys are read up to its own length, rounded up: fewer buckets on a GPU, less wasted work on a CPU.
CPU_KEY_MULTIPLE = 32
GPU_KEY_MULTIPLE = 256


@dataclass(frozen=True, kw_only=True)
class CachedRows:
    """Where one sequence's keys and values are.

    Attributes:
        rows: Pool row of each position it may ever have.
        length: Positions it has, those of this pass included.
    """

    rows: NDArray[np.int64]
    length: int


class PrefillAttention:
    """Causal attention over whole prompts, which also stores their keys and values."""

    def __init__(self, cache: KvBlocks, sequences: Sequence[CachedRows], *, device: torch.device) -> None:
        """Take the prompts in stream order."""
        self._cache = cache
        lengths = [sequence.length for sequence in sequences]
        self._packed = PackedAttention((0, *np.cumsum(lengths).tolist()))
        self._num_used = sum(lengths)
        rows = np.concatenate([sequence.rows[: sequence.length] for sequence in sequences])
        self._rows = torch.from_numpy(rows).to(device)

    @property
    def num_positions(self) -> int:
        return self._packed.num_positions

    def attend(self, layer_index: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule) -> Tensor:
        """Return o [T, H, E]; zeros in the rows of no prompt."""
        used = self._num_used
        self._cache.write(layer_index, rows=self._rows, k_TGE=k_TGE[:used], v_TGE=v_TGE[:used])
        return self._packed.attend(layer_index, q_THE, k_TGE, v_TGE, rule=rule)


@dataclass
class _Bucket:
    """Sequences whose keys are read up to the same length."""

    stream_rows: Tensor
    pool_rows: Tensor
    lengths_B: Tensor
    key_length: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def visible(self, window: int | None) -> Tensor:
        """Mask [B, 1, 1, L]: the keys the newest position sees."""
        if window not in self.masks:
            keys = torch.arange(self.key_length, device=self.lengths_B.device)
            mask = keys < self.lengths_B[:, None]
            if window is not None:
                mask &= keys >= self.lengths_B[:, None] - window
            self.masks[window] = mask[:, None, None, :]
        return self.masks[window]


class DecodeAttention:
    """One new position for each sequence, which sees its own stored keys.

    Keys are read up to the sequence's own rounded length, so its bits do not depend on how long its neighbours are.
    """

    def __init__(self, cache: KvBlocks, sequences: Sequence[CachedRows], *, device: torch.device) -> None:
        """Take the sequences in stream order, one row each."""
        self._cache = cache
        self._longest = max(sequence.length for sequence in sequences)
        newest = np.array([sequence.rows[sequence.length - 1] for sequence in sequences])
        self._rows = torch.from_numpy(newest).to(device)
        multiple = CPU_KEY_MULTIPLE if device.type == "cpu" else GPU_KEY_MULTIPLE
        by_length: dict[int, list[int]] = {}
        for index, sequence in enumerate(sequences):
            rounded = min(-(-sequence.length // multiple) * multiple, len(sequence.rows))
            by_length.setdefault(rounded, []).append(index)
        self._buckets = [
            _Bucket(
                stream_rows=torch.tensor(indices, device=device),
                pool_rows=torch.from_numpy(np.concatenate([sequences[i].rows[:length] for i in indices])).to(device),
                lengths_B=torch.tensor([sequences[i].length for i in indices], device=device),
                key_length=length,
            )
            for length, indices in sorted(by_length.items())
        ]

    @property
    def num_positions(self) -> int:
        return self._longest

    def attend(self, layer_index: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor, *, rule: AttentionRule) -> Tensor:
        """Return o [T, H, E]; zeros in the rows of no sequence."""
        count = len(self._rows)
        self._cache.write(layer_index, rows=self._rows, k_TGE=k_TGE[:count], v_TGE=v_TGE[:count])
        o_THE = torch.zeros_like(q_THE)
        for bucket in self._buckets:
            q_B1HE = q_THE.index_select(0, bucket.stream_rows)[:, None]
            keys, values = self._cache.read(layer_index, rows=bucket.pool_rows)
            shape = (len(bucket.stream_rows), bucket.key_length)
            visible = bucket.visible(rule.window)
            o_B1HE = masked_attention(
                q_B1HE, keys.unflatten(0, shape), values.unflatten(0, shape), visible=visible, rule=rule
            )
            o_THE.index_copy_(0, bucket.stream_rows, o_B1HE[:, 0])
        return o_THE
