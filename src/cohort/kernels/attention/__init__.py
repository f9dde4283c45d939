"""Causal attention over a packed stream, one sequence at a time, ragged and without padding."""

from cohort.kernels.attention.op import packed_attention
from cohort.kernels.attention.tiles import AttentionTiles, RecordedTiles

__all__ = ["AttentionTiles", "RecordedTiles", "packed_attention"]
