"""Builds packed streams by hand, the way data.packing lays them out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from cohort.models.attention import PackedAttention
from cohort.models.decoder import Decoder


def offsets_of(lengths: Sequence[int]) -> tuple[int, ...]:
    return (0, *accumulate(lengths))


def num_rows(lengths: Sequence[int]) -> int:
    """At least 16 rows of no sequence, to a multiple of 16."""
    return (sum(lengths) + 16 + 15) // 16 * 16


def pack(sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor, PackedAttention]:
    """Tokens, positions and attention of a stream of ``sequences``."""
    lengths = [len(sequence) for sequence in sequences]
    tokens = torch.zeros(num_rows(lengths), dtype=torch.int64)
    positions = torch.zeros_like(tokens)
    for sequence, start in zip(sequences, offsets_of(lengths), strict=False):
        tokens[start : start + len(sequence)] = sequence
        positions[start : start + len(sequence)] = torch.arange(len(sequence))
    return tokens, positions, PackedAttention(offsets_of(lengths))


@torch.no_grad()
def packed_logits(decoder: Decoder, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Logits [L, V] of each sequence, all in one stream."""
    tokens, positions, attention = pack(sequences)
    tokens, positions = tokens.to(decoder.device), positions.to(decoder.device)
    hidden = decoder.forward(tokens, positions_T=positions, attention=attention, lora=None)
    logits = decoder.logits(hidden)
    return [
        logits[start : start + len(sequence)] for sequence, start in zip(sequences, _starts(sequences), strict=True)
    ]


def _starts(sequences: Sequence[Tensor]) -> tuple[int, ...]:
    return offsets_of([len(sequence) for sequence in sequences])[:-1]
